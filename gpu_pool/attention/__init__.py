"""Attention over paged KV memory: where keys and values lie and who attends to what in a step.

Owns the KV layout and the shape of a mixed batch; must not know models or plans.
Read next: `kv_cache`, then `batch`, then `paged`.
"""
