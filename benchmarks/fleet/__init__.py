"""A whole fleet of real processes, hurt and replaced under load: what clients, the ledger and the
law see of it. `python -m benchmarks.fleet`, or `make prove-fleet`.
"""
