"""Which node serves a request, and why.

Read next: `gateway.routing.choose_node` (pure), `gateway.routing.fleet` (what is known of nodes).
"""
