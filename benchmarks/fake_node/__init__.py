"""A node without a model: the real wire, a fixed answer, paced events, next to no CPU.

For measuring what stands in front of nodes. It imports `contracts` only and passes the same wire
contract test as the real node. Read next: `server`.
"""
