"""Pieces that several model families share, made of kernels and weights.

Must not know checkpoints, sequences or the batch's make-up. Read next: `linear`.
"""
