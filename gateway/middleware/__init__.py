"""What stands between sockets and routes: connection limits, one request's exchange, servers.

Read next: `gateway.middleware.exchange`, `gateway.middleware.client_connection`.
"""
