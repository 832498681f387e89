"""What one request consumed and what it cost: the record that journal and ledger keep.

Owns the record, its form in the journal and the day it belongs to; must not know files, databases
or prices. Read next: `contracts.pricing`.
"""

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, NodeId, RegionId, RequestId
from contracts.inference import Usage
from contracts.pricing import TokenCounts

MS_PER_DAY: Final = 86_400_000


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    """The client left; what had been computed until then is charged."""
    FAILED = "failed"
    """It broke off on our side; what the client had received until then is charged."""


class NodePlace(NamedTuple):
    """A node, and the region in which it was."""

    node_id: NodeId
    region: RegionId


class UsageRecord(msgspec.Struct, frozen=True, array_like=True):
    """One row of the ledger. Later versions add fields at the end, with defaults."""

    request_id: RequestId
    account_id: AccountId
    api_token_id: ApiTokenId
    model: ModelName
    node_id: NodeId | None
    """The node that had the request last, and its region."""
    region: RegionId | None
    gateway_id: GatewayId
    finished_unix_ms: int
    outcome: Outcome
    tokens: TokenCounts
    price_version: int | None
    """None: the account pays nothing."""
    cost_nano: int
    num_microneurons: int
    earlier_places: tuple[NodePlace, ...] | None = None
    """Where else something of it may have been computed before that, in order and each once: nodes
    that were lost with it or left, and those that computed its prompt for another. Nearly always
    empty. None: unknown, as the gateway was of a version that did not tell, or another has died
    that ran the item of a batch before."""


def to_token_counts(usage: Usage) -> TokenCounts:
    """Every token once, by what it costs."""
    return TokenCounts(
        usage.num_prompt_tokens - usage.num_cached_tokens,
        usage.num_cached_tokens,
        usage.num_completion_tokens - usage.num_reasoning_tokens,
        usage.num_reasoning_tokens,
    )


def list_places(places: tuple[NodePlace, ...]) -> list[dict[str, str]]:
    """The places as JSON has them."""
    return [{"node_id": place.node_id, "region": place.region} for place in places]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(UsageRecord)


def encode_usage_record(record: UsageRecord) -> bytes:
    """The record as the journal keeps it."""
    return _encoder.encode(record)


def decode_usage_record(data: bytes) -> UsageRecord:
    """The record inside `data`. Raises: `msgspec.MsgspecError`."""
    return _decoder.decode(data)


def read_unix_ms(request_id: RequestId) -> int:
    """When the request began, in milliseconds since 1970: the first 48 bits of its id."""
    return int(request_id[:8] + request_id[9:13], 16)


def read_day(request_id: RequestId) -> int:
    """The day since 1970, UTC, on which the request began: its partition of the ledger."""
    return read_unix_ms(request_id) // MS_PER_DAY


class ExportForm(StrEnum):
    """How a ledger is written out."""

    JSONL = "jsonl"
    """A line of JSON for each request, signed at the end."""
    CSV = "csv"
    """A table for spreadsheets; carries no signature."""


class Step(StrEnum):
    """How finely usage is summed up."""

    HOUR = "hour"
    DAY = "day"


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    """What one API token used of one model within an hour or a day."""

    period: int
    """Hours or days since 1970, UTC."""
    model: ModelName
    api_token_id: ApiTokenId
    num_requests: int
    tokens: TokenCounts
    cost_nano: int
    num_microneurons: int


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What several totals come to."""

    num_requests: int = 0
    tokens: TokenCounts = TokenCounts(0, 0, 0, 0)
    cost_nano: int = 0
    num_microneurons: int = 0


class UsageCursor(msgspec.Struct, frozen=True):
    """Where a page of totals ended; the next one begins behind it."""

    period: int
    model: ModelName
    api_token_id: ApiTokenId
