"""The pool computes: a node's server, its engine cores and the models they run.

The control column (`engine`, `kv`, `structured`) imports no torch and meets the tensor column
(`worker`, `runner`, `models`, …) only at `plan`. Must not know accounts beyond a grant.
Read next: `gpu_pool.node`, the composition root; then `gpu_pool.plan`.
"""
