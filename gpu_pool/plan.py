"""What the scheduler asks of the executor and what comes back: plain data, one plan per step.

The only place where the control column (no torch) and the tensor column meet. The executor keeps
a row of state per sequence (token ids, position, sampling state); a plan carries only what
changed, so that a later step can be planned before the ids of an earlier one are known.
Read next: `gpu_pool.engine.scheduler` (makes plans), `gpu_pool.worker` (carries them out).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

from contracts.inference import SamplingParams

SequenceId = NewType("SequenceId", int)
"""A sequence inside one engine core; never reused during its life."""
BlockId = NewType("BlockId", int)
"""A block of KV memory inside one group."""


class KvGroupKind(StrEnum):
    """How the layers of a KV group attend, hence which blocks they need."""

    FULL = "full"


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table. Units: `block_bytes` covers all layers of the group."""

    kind: KvGroupKind
    num_layers: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the executor tells the engine once, after loading.

    Units: `context_window` and `block_size` in tokens.
    """

    kv_groups: tuple[KvGroup, ...]
    block_size: int
    num_blocks: int
    """Blocks per group, all usable; ids run from 0 to `num_blocks - 1`."""
    context_window: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    model_revision: str
    """Digest of the checkpoint, part of every prefix-cache key."""
    kv_dtype: str
    """Part of every prefix-cache key."""
    max_in_flight: int
    """Plans that may be submitted before the oldest is collected; 1 on CPU."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence the executor has no row for: just admitted, or resumed after preemption."""

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    """Prompt, followed by what had been generated before a preemption."""
    num_prompt_tokens: int
    """Length of the original prompt: penalties treat prompt and output differently."""
    num_computed_tokens: int
    """Leading tokens whose KV is already in the given blocks (prefix cache)."""
    sampling: SamplingParams
    """`seed` is always set here: the engine draws one where the client gave none."""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The work of one sequence in this step."""

    sequence_id: SequenceId
    num_tokens: int
    """Tokens to compute now, from the row's position on; 1 for decode."""
    new_block_ids: tuple[tuple[BlockId, ...], ...]
    """Blocks to append to the sequence's table, one tuple per KV group."""
    samples: bool
    """True when the last token of this step is the newest known one, so that a next is sampled."""


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """One step. Order of effects: release rows, add rows, compute `scheduled`, sample."""

    step: int
    released: tuple[SequenceId, ...]
    """Rows to forget: finished, aborted or preempted since the last plan."""
    new: tuple[NewSequence, ...]
    scheduled: tuple[ScheduledSequence, ...]
    """Decode first, then prefill chunks."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of one sequence."""

    sequence_id: SequenceId
    token_id: int


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """The outcome of the plan with the same step number, sampled tokens in plan order."""

    step: int
    sampled: tuple[SampledToken, ...]


class Executor(Protocol):
    """Carries out plans in the order of submission."""

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded."""
        ...

    def submit(self, plan: ForwardPlan) -> None:
        """Starts a step; at most `info.max_in_flight` may be uncollected."""
        ...

    def collect(self) -> ForwardResult:
        """Waits for the oldest submitted step."""
        ...

    def close(self) -> None:
        """Frees everything; nothing may follow."""
        ...
