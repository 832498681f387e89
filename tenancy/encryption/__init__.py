"""The keys that tenancy's secrets depend on, and what is derived from them.

Read next: `key_ring` (the values), `key_ring_file` (the file), `cache_salt`.
"""
