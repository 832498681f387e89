"""The gateway decides who may ask and where it goes; it computes nothing itself.

Owns HTTP, the clients' dialects, authentication, routing and the wires to the nodes. Must not know
weights or tensors, nor how tenancy stores things. Read next: `gateway.app`, then
`gateway.request_path`.
"""
