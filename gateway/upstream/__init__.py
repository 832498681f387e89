"""The wires to the nodes: one WebSocket each, many streams on it.

Read next: `gateway.upstream.links`, then `connection` and `node_stream`.
"""
