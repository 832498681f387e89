"""JSON from strangers: decoded into typed structs, or refused with the path of what is wrong.

Stricter than the decoder alone: text must be valid UTF-8 even in fields that are ignored, and no
key may appear twice in the outermost object. Numbers that JSON does not have (NaN, Infinity), lone
surrogates and nesting beyond the interpreter's depth are errors like any other.
"""

import re
from typing import Final, TypeVar

import msgspec

from contracts.errors import InvalidRequest

ValueT = TypeVar("ValueT")
_PATH: Final = re.compile(r" - at `\$\.?([^`]*)`")
_QUOTED: Final = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `|$)", re.DOTALL)
"""What the decoder says of a value by quoting it, though it could be a secret gone astray."""

_HALF_PAIR: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""The first half of a surrogate pair without the second. At the end of a string the decoder takes
it for the end of the body."""
_MAX_SEARCHED: Final = 1 << 20
"""Bytes that are searched for one: nobody else waits long for an explanation."""
_END_OF_LINE: Final = r"(?!\\n)"
"""How our patterns say that nothing follows; the decoder doubles what escapes."""
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN_FIELD: Final = "Object contains unknown field"


class _Key(str):
    """A key compared by identity, so that a dict keeps those that are equal."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


# The hook is called once per key of the outermost object, with the kind and the decoded name: what
# a call of the kind itself takes. None of it is Python's own code.
_keys_decoder: Final = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=type.__call__)


def decode_json(decoder: msgspec.json.Decoder[ValueT], body: bytes | bytearray) -> ValueT:
    """The value in `body`.

    Raises: `InvalidRequest`, with the path of the offending field as `param` where there is one.
    """
    try:
        if not body.isascii():
            body.decode()
        value = decoder.decode(body)
        names = list(map(str, _keys_decoder.decode(body)))
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    except msgspec.ValidationError as error:
        raise _explain(error, decoder.type) from error
    except msgspec.DecodeError as error:
        raise _explain_syntax(error, body) from error
    if len(set(names)) != len(names):
        raise _name_repeated(names)
    return value


def _explain_syntax(error: msgspec.DecodeError, body: bytes | bytearray) -> InvalidRequest:
    """The error of a body that is no JSON."""
    half = _HALF_PAIR.search(body, 0, _MAX_SEARCHED)
    if half is None:
        return InvalidRequest(f"The body is not valid JSON: {error}.")
    escape, place = half.group(1).decode(), half.start(1)
    return InvalidRequest(
        f"The body is not valid JSON: `{escape}` at byte {place} is half of a surrogate pair, "
        "which is no character."
    )


def _name_repeated(names: list[str]) -> InvalidRequest:
    """The error for the first name that comes a second time."""
    seen: set[str] = set()
    repeated = next(name for name in names if name in seen or seen.add(name))
    return InvalidRequest("The body names a field twice.", param=repeated[:64])


def _explain(error: msgspec.ValidationError, kind: object) -> InvalidRequest:
    """The error with its path set apart, and the known names where the outermost one is unknown."""
    message = _QUOTED.sub(r"\1 that is none of those known here", str(error))
    message = message.replace(_END_OF_LINE, "").replace(r"\\", "\\")
    found, missing = _PATH.search(message), _MISSING.match(message)
    if found is None:
        known = ""
        if message.startswith(_UNKNOWN_FIELD) and isinstance(kind, msgspec.StructMeta):
            known = f" Known are: {', '.join(kind.__struct_encode_fields__)}."
        name = None if missing is None else missing.group(1)
        return InvalidRequest(f"Bad input: {message}.{known}", param=name)
    path = found.group(1)
    param = path if missing is None else f"{path}.{missing.group(1)}"
    return InvalidRequest(f"Bad input at `{path}`: {message[: found.start()]}.", param=param)
