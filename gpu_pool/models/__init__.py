"""Model families, a folder each: mathematics, checkpoint names and what splits where.

Must not know files, plans or sampling. Read next: `parameters`, then `llama.model`.
"""
