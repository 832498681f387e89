"""Who is asking: from an Authorization header to a principal that may do this, or an error.

Read next: `gateway.auth.authenticator`.
"""
