"""The clients' languages, to and from `contracts.inference`: pure functions, no I/O.

Read next: `gateway.dialects.dialect`, `gateway.dialects.workers_ai`.
"""
