"""Adapters (LoRA) of one model: from a file to what is added to rows of its products.

Owns which of a model's products a file's matrices belong to, and what is computed with them; must
not know requests, accounts or who has room. Read next: `adapter_file`, `products`, `row_additions`.
"""
