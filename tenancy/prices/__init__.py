"""The price list, of which nothing is ever changed or removed.

Read next: `tenancy.prices.store`.
"""
