"""Usage: the ledger, its sums by hour and day, and the budgets that rest on them.

Read next: `tenancy.usage.ledger`, `tenancy.usage.roll_up`, `tenancy.usage.budgets`.
"""
