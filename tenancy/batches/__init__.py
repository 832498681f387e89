"""Batches of requests, kept until they have been answered and for a while after.

Read next: `tenancy.batches.interface`, `tenancy.batches.store`.
"""
