"""The folder `text/`: everything tiny-chat is taught, written by hand.

Owns reading it. A file holds templates in the grammar of `grammar.py`, or topics as in `topics.py`;
those in `asked/` hold whole questions as people write them, one to a line.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "text"


def load_text(name: str) -> dict[str, Any]:
    """Returns the table of one file."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def load_wordings(name: str) -> dict[str, tuple[str, ...]]:
    """Returns the lines of a file of `text/asked/` by what they ask for; a line is a template."""
    table: dict[str, str] = load_text(f"asked/{name}")
    return {subject: tuple(lines.split("\n")[:-1]) for subject, lines in table.items()}


def load_templates(name: str, key: str) -> tuple[str, ...]:
    """Returns one list of templates of a file."""
    return tuple(load_text(name)[key])
