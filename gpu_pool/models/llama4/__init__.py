"""Llama 4, its text part. Read next: `model`."""
