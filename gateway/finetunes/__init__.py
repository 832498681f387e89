"""Finetunes: taken in as files, found by the name that a request gives, read for nodes.

Read next: `gateway.finetunes.composition`.
"""
