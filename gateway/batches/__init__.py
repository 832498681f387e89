"""Asynchronous batches: taken in at the desk, run when there is room, told about when asked.

Read next: `gateway.batches.desk`, `gateway.batches.runner`.
"""
