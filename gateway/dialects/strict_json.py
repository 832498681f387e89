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
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    if len(set(names)) != len(names):
        raise _name_repeated(names)
    return value


def _name_repeated(names: list[str]) -> InvalidRequest:
    """The error for the first name that comes a second time."""
    seen: set[str] = set()
    repeated = next(name for name in names if name in seen or seen.add(name))
    return InvalidRequest("The body names a field twice.", param=repeated[:64])


def _explain(error: msgspec.ValidationError, kind: object) -> InvalidRequest:
    """The error with its path set apart, and the known names where the outermost one is unknown."""
    message = _QUOTED.sub(r"\1 that is none of those known here", str(error))
    found = _PATH.search(message)
    if found is None:
        known = ""
        if message.startswith(_UNKNOWN_FIELD) and isinstance(kind, msgspec.StructMeta):
            known = f" Known are: {', '.join(kind.__struct_encode_fields__)}."
        return InvalidRequest(f"Bad input: {message}.{known}")
    path = found.group(1)
    return InvalidRequest(f"Bad input at `{path}`: {message[: found.start()]}.", param=path)
