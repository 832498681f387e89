"""Carries out plans on one model: rows of sequence state in, tensors through the model, tokens out.

Owns what a sequence looks like on the tensor side; must not know checkpoints or processes.
Read next: `model_runner`, then `sequence_row`.
"""
