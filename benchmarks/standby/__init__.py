"""The production planner over simulated nodes: what its plans save against simple rules.

`python -m benchmarks.standby --help`. Read next: `simulation`, `traces`, `policies`.
"""
