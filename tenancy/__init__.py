"""Tenancy remembers who owns what: accounts, API tokens, operators.

Other packages see `interfaces`, `administration`, `permissions` and `policies` only; the real
services are built in composition roots from `tenancy.directory`.
Read next: `tenancy.interfaces`, then `tenancy.store`.
"""
