"""The node's end of the wire to gateways: one WebSocket, many streams.

Owns frames, grants, credits and limits of connections; must not know text or engine cores.
Read next: `contracts.wire` (the protocol), `connection`.
"""
