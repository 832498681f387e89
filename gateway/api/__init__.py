"""What clients and operators can call: the route table and the endpoints behind it.

Read next: `gateway.api.route_table`, `gateway.api.ports`.
"""
