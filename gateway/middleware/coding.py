"""Bodies that are packed: refused, for a small one could hold gigabytes, and guessed by nobody.

Source: RFC 9110, 8.4 and 15.5.16. Read next: `gateway.errors`, which says what is taken instead.
"""

from typing import Final

from contracts.errors import CodingUnsupported

CODING: Final = b"content-encoding"
_PLAIN: Final = frozenset({b"", b"identity"})


def is_coded(value: bytes) -> bool:
    """True for the value of a `Content-Encoding` that stands for more than the body as it is."""
    return value.strip().lower() not in _PLAIN


def refuse_coding() -> CodingUnsupported:
    """The error of a body that is packed."""
    return CodingUnsupported(
        "The request's body is packed (`Content-Encoding`), which is not unpacked here; "
        "send it as it is."
    )
