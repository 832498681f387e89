"""The library `tokenizers`, whose panics are errors like others here.

Owns how it is made and asked. Where it gives up, as on a text that an expression of the checkpoint
takes too long to divide, it raises what is no `Exception`: that would pass by whoever keeps one
request's failure from all others, or one model's from its node. Must not know what ids mean.
Read next: `tokenizer`, `encoder_text` (the callers).
"""

from collections.abc import Generator
from contextlib import contextmanager

from tokenizers import Encoding, Tokenizer

from contracts.errors import InvalidRequest, ServiceError, UnsupportedFeature

_PANICS = "pyo3_runtime"
"""Where the type says that it comes from; nothing else gives it a name."""


def read_tokenizer(document: str) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`. Raises: `UnsupportedFeature`."""
    refusal = UnsupportedFeature("`tokenizer.json` of the checkpoint cannot be used.")
    with _panicking_as(refusal):
        try:
            return Tokenizer.from_str(document)
        except Exception as error:  # the library has no other type
            raise UnsupportedFeature(
                f"`tokenizer.json` of the checkpoint cannot be read: {error}"
            ) from error


def encode_text(tokenizer: Tokenizer, text: str) -> Encoding:
    """What becomes of `text`, nothing added; the batch form lets other threads run meanwhile.

    Raises: `InvalidRequest` where the tokenizer gives up.
    """
    with _panicking_as(InvalidRequest("The model's tokenizer gives up on this text.")):
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return encoding


@contextmanager
def _panicking_as(error: ServiceError) -> Generator[None]:
    """Raises `error` in place of a panic."""
    try:
        yield
    except BaseException as panic:
        if type(panic).__module__ != _PANICS:
            raise
        raise error from panic
