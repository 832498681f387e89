"""Which node serves a request, and why.

Read next: `gateway.routing.choose_node` (pure), `gateway.routing.roster` (what is known of nodes).
"""
