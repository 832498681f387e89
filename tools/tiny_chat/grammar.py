"""The one-line grammar every written question uses: `[how|where] do I [start|launch] Hearth`.

Owns choice and matching: a bracket offers alternatives, which may be empty and may nest.
Read next: `wording.py`.
"""

from __future__ import annotations

import re
from random import Random

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def expand(template: str, rng: Random) -> str:
    """Returns one sentence of the template, with spaces tidied."""
    while (found := _INNERMOST.search(template)) is not None:
        choice = rng.choice(found.group(1).split("|"))
        template = template[: found.start()] + choice + template[found.end() :]
    return tidy(template)


def tidy(text: str) -> str:
    """Returns the text without doubled spaces or spaces before punctuation."""
    return re.sub(r" ([,?!.;])", r"\1", " ".join(text.split()))


def normalised(text: str) -> str:
    """Returns what two wordings share when only case, punctuation or spacing differ."""
    return " ".join(
        re.sub(r"[^a-z0-9+@./' -]", " ", text.lower().replace("’", "'")).split()
    ).rstrip(" .")


def to_pattern(template: str) -> re.Pattern[str]:
    """Returns a pattern that fully matches exactly the normalised sentences of the template."""
    pieces: list[str] = []
    for part in re.split(r"([\[\]|])", template.lower()):
        match part:
            case "[":
                pieces.append("(?:")
            case "]":
                pieces.append(")")
            case "|":
                pieces.append("|")
            case _:
                letters = re.sub(r"[^a-z0-9+@./' -]", " ", part)
                pieces.append(re.sub(r"(?:\\ | )+", " *", re.escape(letters)))
    return re.compile(r" *" + "".join(pieces) + r"[ .]*")
