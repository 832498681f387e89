"""How KV blocks go from the node that computes a prompt to the one that answers.

Owns tickets, what is said of exported blocks and the messages about them; must not know sockets or
how bytes travel. The gateway carries every word of it between the two nodes: they speak to each
other through their transfer engines only. A ticket is sealed like a grant, under a key of one
gateway-node connection, so each half has its own.
Read next: `contracts.wire` (the frames), `contracts.grant`.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from contracts.ids import AccountId, ModelName, NodeId, RequestId
from contracts.seal import unseal

TICKET_VERSION: Final = 1
TAG_BYTES: Final = 16
MAX_AGENT_BYTES: Final = 256 * 1024
"""Of what an engine says of itself: it goes to the other one's agent in a message of its own."""
MAX_CHUNK_BLOCKS: Final = 16_384
"""Blocks that one `KvExported` describes at most."""
MAX_STRETCH: Final = 4
"""A decode node whose blocks keep coming waits so many times as long as its ticket says, at most;
the prefill node's ticket allows for that."""

_FEW_BYTES: Final = 64
_BLOCK_BYTES: Final = 9 + 2 + TAG_BYTES
"""Of an address and a tag on the wire."""

_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Address = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
"""Far enough from 2^64 that no block reaches beyond it: NIXL takes an end that wraps around for one
within the memory that was registered, and the agent of the node that is read from ends over it."""


class KvHalf(StrEnum):
    """Which half of a split generation a node is asked for."""

    PREFILL = "prefill"
    """Compute the prompt, export its blocks, generate nothing."""
    DECODE = "decode"
    """Wait for the blocks, then answer; compute them where they do not come."""


class KvEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of a model whose blocks can come and go.

    Two endpoints can exchange blocks when engine, layout and the model's revision are equal.
    """

    model: ModelName
    engine: str
    """What moves the bytes, such as `nixl`."""
    incarnation: str
    """Random, another in each life of the model's process."""
    layout: str
    """Digest of all that decides how a block's bytes are to be read."""
    block_size: int
    """Tokens of a block."""
    bytes_per_token: int
    """Of all groups together, for an estimate of the way."""


class KvTicket(msgspec.Struct, frozen=True, array_like=True):
    """The permission to move one request's blocks between two nodes.

    For `patience_ms` from when it has the ticket the decode node waits, and longer while blocks
    keep coming; the prefill node keeps them for as long as that may be. Neither goes by the time of
    day, which differs from machine to machine and may be set.
    """

    half: KvHalf
    request_id: RequestId
    account_digest: bytes
    """As `digest_account` makes it: the ticket is for the account of the grant alone."""
    model: ModelName
    revision: str
    layout: str
    deadline_unix_ms: int
    """By then it has been received, or it is worth nothing; milliseconds since 1970."""
    prefill_node: NodeId
    prefill_incarnation: str
    decode_node: NodeId
    decode_incarnation: str
    first_block: int = 0
    """As `KvReserved` said it: blocks before this one are not wanted."""
    num_blocks: int = 0
    """As `KvReserved` said it; 0 in the ticket of the decode node, which says so itself."""
    version: int = TICKET_VERSION
    patience_ms: _Index = 0
    """0 from gateways of versions without it: as much as `deadline_unix_ms` leaves."""

    @property
    def answers(self) -> bool:
        """True at the node that gives the answer."""
        return self.half is KvHalf.DECODE


class KvRun(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring blocks of one KV group in the prefill node's host memory."""

    group: _Index
    first: _Index
    """The index of the first one, counted from the prompt's first block."""
    addresses: tuple[_Address, ...]
    """One per block; their length is the group's, the same on both sides."""
    tags: tuple[bytes, ...]
    """One per block: proof under the account's key of what it holds and where it belongs."""

    def __post_init__(self) -> None:
        """Raises: `ValueError`, which the decoder turns into its own."""
        if len(self.addresses) != len(self.tags) or len(self.tags) > MAX_CHUNK_BLOCKS:
            raise ValueError("not one tag per block, or too many blocks")
        if any(len(tag) != TAG_BYTES for tag in self.tags):
            raise ValueError("a tag of another length")


class KvExported(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """From the prefill node: blocks that can be fetched until `KvRelease` or the lease's end."""

    incarnation: str
    agent: Annotated[bytes, msgspec.Meta(max_length=MAX_AGENT_BYTES)]
    """What the decode node's engine has to know to reach this one."""
    runs: tuple[KvRun, ...]
    is_last: bool

    @property
    def num_frame_bytes(self) -> int:
        """What it takes of a frame, at most."""
        names = _FEW_BYTES + 4 * len(self.incarnation) + len(self.agent)
        return names + sum(_FEW_BYTES + _BLOCK_BYTES * len(run.tags) for run in self.runs)


class KvReserved(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """From the decode node: it waits for these blocks, for which it has room."""

    first_block: _Index
    """Blocks before this one it has already."""
    num_blocks: _Index
    """Of the prompt, those before `first_block` included."""


class KvLanded(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """From the decode node: all blocks are there and verified; the prefill node may free them."""

    num_bytes: int
    seconds: float
    """From the first block's announcement on."""


KV_LATE: Final = "late"
"""Why a landing is given up that has not come in time; the one reason from which is learnt."""


class KvGaveUp(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """From the decode node: it computes the prompt itself and reads nothing any more; the prefill
    node may free its blocks. Comes in place of `KvReserved`, too.
    """

    reason: str
    """For operators: `declined`, `late`, `stopped`, `failed`, `tags`; of cores `agent`, `ended`."""


TransferEvent = KvExported | KvReserved | KvLanded | KvGaveUp


class KvImport(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """To the decode node: what the prefill node has exported, passed on as it is."""

    exported: KvExported
    sealed_ticket: bytes = b""
    """Set in the first one from another prefill node than the ticket of `Open` names."""


class KvRelease(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """To the prefill node: the decode node has said `KvLanded` or `KvGaveUp`, or was told of no
    blocks. Its stream ends.
    """


class KvStop(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """To the decode node: nothing will come any more; it computes the prompt itself."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(KvTicket)


def digest_account(account_id: AccountId) -> bytes:
    """What stands for an account in tickets."""
    return hashlib.sha256(b"hearth kv account\0" + account_id.encode()).digest()


def seal_ticket(ticket: KvTicket, connection_key: bytes) -> bytes:
    """The ticket as bytes, led by its authentication code."""
    payload = _encoder.encode(ticket)
    return hmac.digest(_derive_key(connection_key), payload, "sha256") + payload


def unseal_ticket(sealed: bytes, connection_key: bytes) -> KvTicket:
    """The ticket inside `sealed`.

    Raises: `Forbidden` when the code does not fit, or the content is malformed or of a newer
    version.
    """
    return unseal(sealed, _derive_key(connection_key), _decoder, TICKET_VERSION, "ticket")


def _derive_key(connection_key: bytes) -> bytes:
    """A key whose codes fit no grant."""
    return hmac.digest(connection_key, b"hearth kv tickets", "sha256")
