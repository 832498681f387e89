"""Finetunes: adapters that accounts have uploaded, their files in pieces under their keys.

Read next: `tenancy.finetunes.interface`, `tenancy.finetunes.store`.
"""
