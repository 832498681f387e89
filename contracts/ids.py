"""Identifiers and their shapes: what an account id, a model name or a request id looks like.

Owns parsing and building; must not know who issues an id or where it is stored.
Read next: `contracts.inference`.
"""

import re
from typing import Final, NewType

AccountId = NewType("AccountId", str)
"""A tenant: 32 lower-case hexadecimal digits."""
ApiTokenId = NewType("ApiTokenId", str)
"""The public id of a tenant's credential (32 hex digits); never the credential itself."""
OperatorId = NewType("OperatorId", str)
"""A person or program that runs the platform: 32 hex digits."""
NodeId = NewType("NodeId", str)
"""A machine of the pool, unique in the fleet: letters, digits, `-`, `_`, `.`; at most 63."""
BootId = NewType("BootId", str)
"""One life of a node's process; changes at every start, so that stale state is recognised."""
GatewayId = NewType("GatewayId", str)
"""One gateway process; the same shape as a node id."""
RegionId = NewType("RegionId", str)
"""A region of the catalogue, such as `weur`."""
RequestId = NewType("RequestId", str)
"""A UUIDv7 in its usual text form; its timestamp's day is the partition of the ledger."""
ModelName = NewType("ModelName", str)
"""A model as clients name it: `@scope/author-or-name[/name]`, such as `@cf/meta/llama-3.2-1b`."""

FinetuneId = NewType("FinetuneId", str)
"""An adapter as its account knows it: a UUID in its usual text form."""

_ACCOUNT_ID: Final = re.compile(r"[0-9a-f]{32}")
_NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_FINETUNE_ID: Final = _REQUEST_ID
_JURISDICTION: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MODEL_NAME: Final = re.compile(r"@[a-z0-9][a-z0-9-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){1,3}")
MAX_MODEL_NAME_LENGTH: Final = 200
_NO_PLACE: Final = ", which stands for no list at all, or for an empty one."
_REGION_FORM: Final = "up to 63 letters, digits and `._-`, a letter or digit first"
JURISDICTION_FORM: Final = (
    "up to 63 lower-case letters, digits and characters of `._-`, a letter or digit first, such as "
    "`eu`"
)
"""What `is_jurisdiction` asks for, in words."""
RESERVED_PLACES: Final = ("any", "none")
"""No region or jurisdiction is called so: lists and commands say it of all of them, or of none."""


def is_account_id(text: str) -> bool:
    """True when `text` has the shape of an account id."""
    return _ACCOUNT_ID.fullmatch(text) is not None


def is_node_id(text: str) -> bool:
    """True when `text` has the shape of a node or gateway id."""
    return _NODE_ID.fullmatch(text) is not None


def is_jurisdiction(text: str) -> bool:
    """True when `text` can name whose law holds somewhere. Names are compared as they are written,
    so that each has one spelling.
    """
    return _JURISDICTION.fullmatch(text) is not None and text not in RESERVED_PLACES


def find_region_fault(name: str) -> str | None:
    """Why no region can be called `name`, as a sentence; None: one can."""
    if name in RESERVED_PLACES:
        return f"No region is called `{name}`{_NO_PLACE}"
    if is_node_id(name):
        return None
    return f"`{name}` is not a region's name: it takes {_REGION_FORM}."


def find_jurisdiction_fault(name: str) -> str | None:
    """Why no jurisdiction can be called `name`, as a sentence; None: one can."""
    if name in RESERVED_PLACES:
        return f"No jurisdiction is called `{name}`{_NO_PLACE}"
    if is_jurisdiction(name):
        return None
    return f"`{name}` names no jurisdiction: it takes {JURISDICTION_FORM}."


def is_model_name(text: str) -> bool:
    """True when `text` has the shape of a model name; whether it exists is not asked."""
    return len(text) <= MAX_MODEL_NAME_LENGTH and _MODEL_NAME.fullmatch(text) is not None


def is_request_id(text: str) -> bool:
    """True when `text` has the shape of a request id."""
    return _REQUEST_ID.fullmatch(text) is not None


def is_finetune_id(text: str) -> bool:
    """True when `text` has the shape of a finetune's id."""
    return _FINETUNE_ID.fullmatch(text) is not None


def create_request_id(unix_ms: int, randomness: int) -> RequestId:
    """A UUIDv7 from a time in milliseconds and 74 random bits; larger values are cut.

    Source: RFC 9562 section 5.7.
    """
    return RequestId(
        f"{unix_ms >> 16 & 0xFFFF_FFFF:08x}-{unix_ms & 0xFFFF:04x}-7{randomness >> 62 & 0xFFF:03x}"
        f"-{randomness >> 48 & 0x3FFF | 0x8000:04x}-{randomness & 0xFFFF_FFFF_FFFF:012x}"
    )
