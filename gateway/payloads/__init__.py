"""Payload logs: what is asked and answered, on its way to the store.

Read next: `gateway.payloads.payload_log`.
"""
