"""Texts of others, shortened: errors that say what they found may have found megabytes.

Owns the bound and the form; must not know whose text it is.
"""

from typing import Final

MAX_MESSAGE_CHARS: Final = 2000
"""Of one message or reason between nodes and gateways; UTF-8 makes four times as many bytes of it
at most."""
_MARK_CHARS: Final = 48
"""What the words between beginning and end take at most."""


def shorten(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """`text` if it has no more characters than that; else its beginning, which says what is wrong,
    how many characters are left out, and its end. What was shortened once stays as it is. Half a
    surrogate, of which no UTF-8 can be made, becomes a question mark.
    """
    if len(text) > max_chars:
        num_kept = max_chars - _MARK_CHARS
        num_last = num_kept // 4
        left_out = len(text) - num_kept
        text = f"{text[: num_kept - num_last]} [… {left_out} characters …] {text[-num_last:]}"
    return text.encode(errors="replace").decode()
