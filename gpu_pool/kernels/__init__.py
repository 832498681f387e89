"""The operations a model is made of, one per file: a reference in torch and its dispatch.

Owns arithmetic on tensors; must not know sequences, checkpoints or settings.
Read next: `rms_norm` (the form of all others), then `decode_attention`.
"""
