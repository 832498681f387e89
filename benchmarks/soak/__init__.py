"""A fleet of real processes under moderate load for an hour: what grows, and what the ledger says.
`make soak MINUTES=60`, or `python -m benchmarks.soak`.
"""
