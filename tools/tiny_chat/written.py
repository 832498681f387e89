"""The folder `text/`: everything tiny-chat is taught, written by hand.

Owns reading it. A file holds templates in the grammar of `grammar.py`, or topics as in `topics.py`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "text"


def load_text(name: str) -> dict[str, Any]:
    """Returns the table of one file."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def load_templates(name: str, key: str) -> tuple[str, ...]:
    """Returns one list of templates of a file."""
    return tuple(load_text(name)[key])
