"""API tokens: their written form, their digests and where they are kept.

Read next: `format`, then `digests`, then `store`.
"""
