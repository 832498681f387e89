"""What requests consumed: written down at once, brought to the ledger soon after.

Read next: `gateway.metering.journal`.
"""
