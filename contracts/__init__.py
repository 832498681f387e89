"""The words the packages share: wire types, errors, ids, settings.

Owns no behaviour beyond encoding and validation. Must not know I/O, clocks or the environment.
Read next: `inference`, then `wire`, then `errors`.
"""
