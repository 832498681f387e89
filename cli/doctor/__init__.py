"""`hearth doctor`: looks at an installation, explains what it finds and what to do.

Read next: `cli.doctor.command`.
"""
