"""Accounts, the tenants of the platform. Read next: `store`."""
