"""Times as people type them for a token: `90d`, `2027-01-31`, `2027-01-31T12:00:00Z`.

Owns the forms alone; a time without a zone is UTC. Units: seconds since 1970.
"""

import re
from datetime import UTC, datetime
from typing import Final

import typer

_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([mhdw])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_expiry(text: str, now_unix_s: int) -> int:
    """When a duration from now, a date or a time ends. Raises: `typer.BadParameter`."""
    match = _DURATION.fullmatch(text)
    if match is not None:
        return now_unix_s + int(match[1]) * _SECONDS[match[2]]
    unix_s = parse_time(text, "--expires")
    if unix_s <= now_unix_s:
        raise typer.BadParameter(f"{text} is in the past.", param_hint="--expires")
    return unix_s


def parse_time(text: str, option: str) -> int:
    """A date (its beginning) or a time. Raises: `typer.BadParameter`, which names `option`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text} is not a time such as 2027-01-31 or 2027-01-31T12:00:00Z.",
            param_hint=option,
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
