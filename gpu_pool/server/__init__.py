"""A node's server process: text in, text out, many streams over few connections.

Owns the wire to gateways, the text side of each model and the engine-core processes; must not know
torch, accounts or prices. Read next: `wire.connection`, `text.prompt_encoder`, `core_supervisor`.
"""
