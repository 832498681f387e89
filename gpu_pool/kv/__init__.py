"""KV memory as the engine accounts for it: blocks, who uses them, what can be found again.

Owns numbers and hashes only; must not know torch, sequences or messages.
Read next: `block_pool`, then `kv_memory`.
"""
