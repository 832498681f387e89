"""The `hearth` command: everything a person types.

Owns arguments, messages and exit codes; the work itself lives in the packages that the commands
import when they run. Must not be imported by any of them. Read next: `cli.main`, `cli.dev`.
"""
