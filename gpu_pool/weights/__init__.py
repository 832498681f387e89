"""Checkpoints: folders of safetensors in Hugging Face layout, read without running any code.

Owns files, their checks and their digest; must not know plans or sampling.
Read next: `config`, then `checkpoint`, then `reader`.
"""
