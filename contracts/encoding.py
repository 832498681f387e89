"""What is asked of an encoder and what comes back: vectors of texts, or probabilities of labels.

Owns that request and its one event; must not know HTTP, accounts or tokenizers.
Read next: `contracts.inference`, whose unions they are part of; `gpu_pool.server.encoding`.
"""

import struct
from enum import StrEnum
from typing import Final

import msgspec

from contracts.ids import ModelName

MAX_INPUTS: Final = 2048
"""Texts of one request."""
FLOAT_BYTES: Final = 4


class EncoderTask(StrEnum):
    """What is to be computed of each text."""

    EMBED = "embed"
    """Its vector, of length 1."""
    RERANK = "rerank"
    """One number between 0 and 1: how well it answers `query`."""
    CLASSIFY = "classify"
    """The probability of each label of the model, in the order of its card."""


class Pooling(StrEnum):
    """How the states of a text's tokens become one vector."""

    MEAN = "mean"
    CLS = "cls"
    """The first token's, which the model was trained to gather the text in."""


class EncodeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="encode"):
    """Texts that are encoded independently of each other; answered in whole or not at all."""

    model: ModelName
    task: EncoderTask
    inputs: tuple[str | tuple[int, ...], ...]
    """Texts, or token ids that are taken as they stand; 1 to `MAX_INPUTS`."""
    query: str | None = None
    """With `RERANK`: what every text is compared to."""
    pooling: Pooling | None = None
    """With `EMBED`; None takes the model's own."""
    truncates: bool = True
    """False refuses a text that is longer than the model takes, instead of cutting its end off."""
    reject_if_busy: bool = False
    schema_version: int = 1
    """Counted together with that of all other requests: `contracts.inference.SCHEMA_VERSION`."""


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The results of some texts, of which each comes exactly once, in any order."""

    indices: tuple[int, ...]
    """Which texts, counted from 0."""
    vectors: tuple[bytes, ...]
    """One per index: 32-bit floats, little endian, as many as the task gives for a text."""


def read_floats(vector: bytes) -> tuple[float, ...]:
    """The numbers of one vector."""
    return struct.unpack(f"<{len(vector) // FLOAT_BYTES}f", vector)
