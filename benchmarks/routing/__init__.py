"""The production router over a simulated fleet: what its choices cost and what they are worth.

`python -m benchmarks.routing --help`. Read next: `simulation`, `traces`, `policies`.
"""
