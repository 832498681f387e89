"""Token ids to text, one at a time, never half a character.

Bytes of an unfinished character are held back (three at most); what can never become one turns
into U+FFFD, exactly as decoding everything at once would. Must not know stop strings.
Read next: `text_stream`.
"""

import codecs
from typing import Final

from gpu_pool.server.text.token_bytes import TokenBytes

_create_decoder: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The state of one sequence; time is linear in the bytes of the text."""

    __slots__ = ("_decoder", "_pieces", "_strips_space", "is_partial")

    def __init__(self, table: TokenBytes, *, is_beginning: bool = True) -> None:
        """Starts at the beginning of an answer, or behind a text that it continues."""
        self._pieces = table.pieces
        self._strips_space = is_beginning and table.strips_first_space
        self._decoder: codecs.IncrementalDecoder | None = None
        self.is_partial = False
        """True while bytes of an unfinished character are held back."""

    def push(self, token_id: int) -> str:
        """The text that became final with `token_id`; ids outside the vocabulary have none."""
        if token_id >= len(self._pieces):
            return ""
        piece = self._pieces[token_id]
        if isinstance(piece, bytes) or self.is_partial:
            piece = self._decode(piece)
        if self._strips_space and piece:
            self._strips_space = False
            return piece.removeprefix(" ")
        return piece

    def finish(self) -> str:
        """What is left: U+FFFD when the answer ends inside a character, else nothing."""
        if self._decoder is None:
            return ""
        self.is_partial = False
        return self._decoder.decode(b"", final=True)

    def _decode(self, piece: str | bytes) -> str:
        """The characters that are whole after `piece`."""
        if not piece:
            return ""
        if self._decoder is None:
            self._decoder = _create_decoder(errors="replace")
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self.is_partial = bool(self._decoder.getstate()[0])
        return text
