"""A worker: one loaded model with its memory, which carries out plans (`gpu_pool.plan.Executor`).

Composes weights, model and runner from settings; must not know requests or scheduling.
Read next: `worker`, then `gpu_pool.runner`.
"""
