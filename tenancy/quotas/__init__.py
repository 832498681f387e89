"""Quotas: what accounts, API tokens and models may use at most.

Read next: `tenancy.quotas.store`.
"""
