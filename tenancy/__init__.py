"""Tenancy remembers who owns what: accounts, API tokens, operators.

Other packages see `interfaces` and `errors` only; the real services are built in composition
roots from `tenancy.directory`, the double from `tenancy.memory`.
Read next: `tenancy.interfaces`.
"""
