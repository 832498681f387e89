"""The console: pages of the operators' port for people, rendered here, usable without script.

Reads and changes the same services as the JSON routes beside it, as the same actor and under the
same checks. Must not know how any of them does its work. Read next: `gateway.console.table`.
"""
