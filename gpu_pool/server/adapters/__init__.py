"""Files of adapters on a node: how they come, which of them stay, and who waits for them.

Read next: `adapter_supply` (what a model asks), `shelf`.
"""
