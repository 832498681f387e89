"""What commands share at the terminal: how they fail and how they print data.

Owns the wording of failures; must not know any command. Read next: `cli.main`.
"""

import sys
from typing import Any

import msgspec


class CommandFailed(Exception):
    """Ends the command with exit code 1. The message is for the person who typed it."""


def print_json(value: Any) -> None:
    """Writes `value` (structs, dataclasses, plain values) as one indented JSON document."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def is_interactive() -> bool:
    """True when a person sees the output and may type."""
    return sys.stdout.isatty() and sys.stdin.isatty()
