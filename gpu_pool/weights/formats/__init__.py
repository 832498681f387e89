"""Ways of packing weights that checkpoints come in, a file for each: what is found by name.

What they share is in `pieces`, the arithmetic in `gpu_pool.weights.unpacking`; `packing` chooses.
"""
