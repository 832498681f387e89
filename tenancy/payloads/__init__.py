"""Payload logs: what was asked and answered, kept for accounts that want it, under their keys.

Read next: `tenancy.payloads.interface`, `tenancy.payloads.administration`.
"""
