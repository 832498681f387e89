"""`hearth dev`: everything on one machine, started by one command.

Owns the state folder and the life of the two child processes; must not know how either works.
Read next: `command`, then `home`, `preparation`, `supervisor`.
"""
