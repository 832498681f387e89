"""The engine core's control side: requests in, plans out, tokens back.

Owns sequences, scheduling and the step loop; must not know torch, sockets of clients or text.
Read next: `messages`, `scheduler`, `core`.
"""
