"""Bodies as bytes: the msgpack form of what travels inside frames.

Owns encoding and the errors of decoding; must not know frames (`contracts.wire`) or sockets.
"""

from typing import Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.inference import SCHEMA_VERSION, NodeRequest

_encoder: Final = msgspec.msgpack.Encoder()
_request_decoder: Final[msgspec.msgpack.Decoder[NodeRequest]] = msgspec.msgpack.Decoder(NodeRequest)


def encode_request(request: NodeRequest) -> bytes:
    """The msgpack body of `Open` for `request`."""
    return _encoder.encode(request)


def decode_request(body: bytes) -> NodeRequest:
    """The request inside `body`; fields that this version does not know are ignored.

    Raises: `InvalidRequest` when it is malformed or of a newer schema.
    """
    try:
        request = _request_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The request body cannot be decoded: {error}") from error
    if request.schema_version > SCHEMA_VERSION:
        raise InvalidRequest(
            f"The request uses schema {request.schema_version}; this node reads {SCHEMA_VERSION}."
        )
    return request
