"""Which models of a node are on its device at the moment, and who goes when another is asked for.

Must not know requests, texts or the wire. Read next: `room` (who goes), `keeper` (makes it so).
"""
