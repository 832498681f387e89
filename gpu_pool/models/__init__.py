"""Model families, a folder each: mathematics, checkpoint names and what splits where.

Must not know files, plans' contents or sampling.
Read next: `registry` (which families there are), `decoder` (what most of them share), `llama`.
"""
