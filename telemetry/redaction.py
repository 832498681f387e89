"""Takes credentials out of a line that is about to be written to a log, whatever put them there.

The last step, after rendering: prompts and credentials are kept from lines where these are made,
and this is for the day on which somebody forgets. Owns what a credential looks like in text.
"""

import re
from typing import Any, Final

_CREDENTIAL: Final = re.compile(r"\b(hearth_[a-z]{2,8}_)[0-9A-Za-z]{16,}")
_AUTHORIZATION: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_SESSION: Final = re.compile(r"\b(hearth_console=)[0-9a-f]{16,}")
_URL_PASSWORD: Final = re.compile(r"(\w://[^\s:/@\"']*:)[^\s/@\"']+@")


def redact(line: str) -> str:
    """`line` with `***` for every API token, credential, session and password of a URL."""
    line = _CREDENTIAL.sub(r"\1***", line)
    line = _AUTHORIZATION.sub(r"\1 ***", line)
    line = _SESSION.sub(r"\1***", line)
    return _URL_PASSWORD.sub(r"\1***@", line)


def redact_rendered(_logger: Any, _method: str, line: Any) -> Any:
    """The same as the last of structlog's processors, behind the renderer."""
    return redact(line) if isinstance(line, str) else line
