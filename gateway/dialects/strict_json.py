"""JSON from strangers: decoded into typed structs, or refused with the path of what is wrong.

Stricter than the decoder alone: text must be valid UTF-8 even in fields that are ignored, and no
key may appear twice in the outermost object. Numbers that JSON does not have (NaN, Infinity), lone
surrogates and nesting beyond the interpreter's depth are errors like any other.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from contracts.errors import InvalidRequest

ValueT = TypeVar("ValueT")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")


class _Key:
    """A key compared by identity, so that a dict keeps those that are equal."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _to_key(_kind: type, name: Any) -> _Key:
    """The decoder's hook: called once per key of the outermost object."""
    return _Key(name)


_keys_decoder: Final = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_to_key)


def decode_json(decoder: msgspec.json.Decoder[ValueT], body: bytes | bytearray) -> ValueT:
    """The value in `body`.

    Raises: `InvalidRequest`, with the path of the offending field as `param` where there is one.
    """
    try:
        if not body.isascii():
            body.decode()
        value = decoder.decode(body)
        keys = _keys_decoder.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    except msgspec.ValidationError as error:
        raise _explain(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    _refuse_repeated(keys)
    return value


def _refuse_repeated(keys: Iterable[_Key]) -> None:
    """Raises for the first name that comes a second time; linear, as the body may be hostile."""
    seen: set[str] = set()
    for key in keys:
        if key.name in seen:
            raise InvalidRequest("The body names a field twice.", param=key.name[:64])
        seen.add(key.name)


def _explain(error: msgspec.ValidationError) -> InvalidRequest:
    """The error with its path set apart."""
    message = str(error)
    found = _PATH.search(message)
    if found is None:
        return InvalidRequest(f"Bad input: {message}.")
    path = found.group(1)
    return InvalidRequest(f"Bad input at `{path}`: {message[: found.start()]}.", param=path)
