"""Low-rank adapters (LoRA) as gateways and nodes speak of them.

An adapter adds `scale · B · A` to some of a model's matrices. Owns its identity and the messages by
which a node gets the file; must not know who owns an adapter, nor its tensors. A node asks for what
it lacks piece by piece, on the stream of a request that needs it, and believes nothing but the
digest. Read next: `contracts.wire` (the frames), `gpu_pool.lora` (what is computed).
"""

import hashlib
import struct
from typing import Annotated, Final

import msgspec

DIGEST_BYTES: Final = 32
MAX_ADAPTER_BYTES: Final = 500 * 1024 * 1024
"""Of a file of weights; the contract's limit."""
MAX_ASKED_BYTES: Final = 1024 * 1024
"""That a node asks for at once: what is on its way keeps other streams waiting."""
_DOMAIN: Final = b"hearth adapter 1"

_Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_NumBytes = Annotated[int, msgspec.Meta(gt=0, le=MAX_ADAPTER_BYTES)]
_Place = Annotated[int, msgspec.Meta(ge=0, le=MAX_ADAPTER_BYTES)]
_Scale = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a request is to be computed with.

    Two refs with equal `digest` compute the same, whatever they are called and whoever owns them.
    """

    weights_sha256: _Digest
    """Of the safetensors file."""
    num_bytes: _NumBytes
    """Its length."""
    scale: _Scale
    """`lora_alpha` by the rank, or by its root where the adapter says so."""
    rank: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    """The largest among its matrices."""

    @property
    def digest(self) -> bytes:
        """Names all that decides what is computed; part of every prefix-cache key."""
        fields = _DOMAIN + self.weights_sha256 + struct.pack("<d", self.scale)
        return hashlib.sha256(fields).digest()


class AdapterWanted(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Node to gateway: the stream's request waits for these bytes of its adapter's file."""

    first: _Place
    num_bytes: Annotated[int, msgspec.Meta(gt=0, le=MAX_ASKED_BYTES)]


class AdapterPiece(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Gateway to node: some of the bytes that were asked for, in order; all of them come."""

    first: _Place
    data: bytes
