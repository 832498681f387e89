"""KV blocks between nodes: engines that move bytes, and what a core makes of them.

Must not know torch, the scheduler or the gateway. Read next: `transfer_engine`, `importer`,
`exporter`, `exchange`.
"""
