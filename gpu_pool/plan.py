"""What the scheduler asks of the executor and what comes back: plain data, one plan per step.

The only place where the control column (no torch) and the tensor column meet. The executor keeps
a row of state per sequence (token ids, position, sampling state); a plan carries only what
changed, so that a later step can be planned before the ids of an earlier one are known.
Read next: `gpu_pool.engine.scheduler` (makes plans), `gpu_pool.worker` (carries them out).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType, Protocol, runtime_checkable

import msgspec

from contracts.encoding import Pooling
from contracts.inference import SamplingParams

SequenceId = NewType("SequenceId", int)
"""A sequence inside one engine core; never reused during its life."""
BlockId = NewType("BlockId", int)
"""A block of KV memory inside one group."""
HostBlockId = NewType("HostBlockId", int)
"""A block of host memory that takes in a block of one group."""


class KvGroupKind(StrEnum):
    """How the layers of a KV group attend, hence which blocks they need."""

    FULL = "full"
    """Every token sees all before it."""
    SLIDING_WINDOW = "sliding_window"
    """A token sees the last `window` tokens, itself included."""
    CHUNKED = "chunked"
    """A token sees those before it in its own chunk of `window` tokens."""
    MLA_LATENT = "mla_latent"
    """As `FULL`, but keys and values of all heads are one latent vector a token."""


@dataclass(frozen=True, slots=True)
class KvSlabs:
    """How a group shares memory with other models: so many blocks at a time come and go."""

    blocks_each: int
    """Blocks of a slab; a group's are all in slabs."""
    num_own: int
    """Slabs that never go."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table. Units: `block_bytes` covers all layers of the group.

    A token further back than `window` is never read again by a sliding or chunked group: its block
    goes back to the pool while the sequence goes on.
    """

    kind: KvGroupKind
    num_layers: int
    block_bytes: int
    window: int | None = None
    """Tokens of a sliding window or a chunk; None for the other kinds."""
    num_blocks: int | None = None
    """Blocks of this group; None: as many as `ExecutorInfo.num_blocks`."""
    num_host_blocks: int = 0
    """Blocks of host memory for what preempted sequences have computed."""
    slabs: KvSlabs | None = None
    """None: all blocks are always there. Else only the first of them are at first."""


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
    weights_bytes: int = 0
    """What the weights have really taken on the device."""
    kv_bytes: int = 0
    """The same of the KV memory that is always there."""
    num_tensor_ranks: int = 1
    """Processes that share each layer, and with it the KV of each token."""
    num_stages: int = 1
    """Parts of a pipeline, each with some of the layers. With several, a step holds sequences whose
    tokens are all known: others would wait for the step that draws them."""
    max_adapter_rank: int = 0
    """The largest rank of an adapter; 0: none is taken."""
    adapter_bytes: int = 0
    """What all adapters that are there may take together."""


class AdapterFile(msgspec.Struct, frozen=True, array_like=True):
    """An adapter on this machine, checked against what it was announced as."""

    digest: bytes
    """As `contracts.adapters.AdapterRef` makes it: part of every prefix-cache key."""
    path: str
    """Its safetensors file."""
    scale: float
    """What the product of its two matrices is multiplied with."""


class AdapterNews(msgspec.Struct, frozen=True, array_like=True):
    """What has become of an adapter that was to be measured or loaded."""

    digest: bytes
    num_bytes: int = 0
    """What it takes of `ExecutorInfo.adapter_bytes`."""
    is_loaded: bool = False
    """It is there; else it was only measured, or is not to be had."""
    refused: str = ""
    """Why the model cannot be computed with it, in a sentence for the client."""
    failed: str = ""
    """Why it was not to be had here and now, in a sentence for the client."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence the executor has no row for: just admitted, or resumed after preemption."""

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    """Prompt, followed by what had been generated before a preemption."""
    num_prompt_tokens: int
    """Length of the original prompt: penalties treat prompt and output differently."""
    num_computed_tokens: int
    """Leading tokens whose KV is already in the given blocks: from the prefix cache, whole blocks
    only, or moved in from the host."""
    sampling: SamplingParams
    """`seed` is always set here: the engine draws one where the client gave none."""
    adapter: AdapterFile | None = None
    """Loaded before, by the executor."""


class ScheduledSequence(msgspec.Struct, frozen=True):
    """The work of one sequence in this step."""

    sequence_id: SequenceId
    num_tokens: int
    """Tokens to compute now, from the row's position on; 1 for decode."""
    new_block_ids: tuple[tuple[BlockId, ...], ...]
    """Blocks to append to the sequence's table, one tuple per KV group. In a new row's first work
    they begin behind the dropped ones."""
    samples: bool
    """True when the last token of this step is the newest known one, so that a next is sampled."""
    new_block_tags: tuple[tuple[int, ...], ...] = ()
    """One per new block: grows whenever the block changes hands. The executor compares it with what
    it knows before it reads, and fails a sequence whose blocks are no longer its own."""
    nums_dropped: tuple[int, ...] = ()
    """Leading entries of each table that the sequence does not hold any more, nor reads; () when
    that has not changed."""
    draft_token_ids: tuple[int, ...] = ()
    """Guesses at what follows the newest token, computed behind it in the same step. A guess counts
    where it is what sampling draws there, so that answers are the same without. Only with `samples`
    and without penalties and `allowed_tokens`; blocks are there for all of them."""
    allowed_tokens: bytes | None = None
    """With `samples`: a bit per token of the vocabulary, least significant first, in at least as
    many bytes as that takes; only tokens whose bit is set may be drawn. None allows all."""


@dataclass(frozen=True, slots=True)
class BlockMove:
    """A copy of one block between the device and the host."""

    group: int
    block_id: BlockId
    host_id: HostBlockId


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Neighbouring blocks of one group: from `first` to before `end`."""

    group: int
    first: BlockId
    end: BlockId


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """One step. Order of effects: release rows, drop blocks, move out, zero, give up, move in, add
    rows, compute, copy out, sample.

    Without scheduled work there are blocks to be zeroed or given up.
    """

    step: int
    released: tuple[SequenceId, ...]
    """Rows to forget: finished, aborted or preempted since the last plan."""
    new: tuple[NewSequence, ...]
    scheduled: tuple[ScheduledSequence, ...]
    """Decode first, then prefill chunks."""
    zeroed: tuple[tuple[BlockId, ...], ...] = ()
    """Blocks of which nothing may remain, one tuple per KV group; () when there are none."""
    given_up: tuple[BlockRange, ...] = ()
    """Slabs whose memory is another model's once this step is over. They hold zeros when they come
    back, of which nobody is told."""
    moved_out: tuple[BlockMove, ...] = ()
    """Blocks of preempted sequences to be kept in host memory."""
    moved_in: tuple[BlockMove, ...] = ()
    """Blocks of resumed sequences to be filled from host memory."""
    copied_out: tuple[BlockMove, ...] = ()
    """Blocks that this step completes, or that were complete, to be in host memory as well when its
    result is there."""


class TokenScore(msgspec.Struct, frozen=True, array_like=True):
    """How likely one token was by the model's own logits: before bias, penalties and filters.

    Units: natural logarithms.
    """

    logprob: float | None
    """None for the first token of a prompt, which follows nothing."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their logprobs, in falling order."""


NO_TOKEN: Final = -1
"""Stands where a next token would: the logits had no number in them, so none could be chosen."""


class SampledTokens(msgspec.Struct, frozen=True):
    """The next tokens of one sequence: the accepted drafts, then one more."""

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    """Never empty. `NO_TOKEN` comes last."""
    scores: tuple[TokenScore, ...] = ()
    """One per token where `sampling.num_logprobs` is set."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of the prompt tokens from position `first` on, as far as this step tells."""

    sequence_id: SequenceId
    first: int
    scores: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """The outcome of the plan with the same step number, both tuples in plan order."""

    step: int
    sampled: tuple[SampledTokens, ...]
    prompt_scores: tuple[PromptScores, ...] = ()
    """From sequences with `sampling.num_prompt_logprobs` set. Computing the token at a position
    scores the one behind it."""
    failed: tuple[SequenceId, ...] = ()
    """Scheduled sequences whose blocks turned out to be another's; they have not been sampled."""


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """Whole texts that are encoded together. All tuples have one entry per text.

    Texts of one length are neighbours, so that they share attention calls.
    """

    token_ids: tuple[tuple[int, ...], ...]
    nums_query_tokens: tuple[int, ...]
    """Leading tokens that belong to the query a text is compared to; 0 where there is none."""
    poolings: tuple[Pooling, ...]


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What an encoder's executor tells the engine once, after loading.

    Units: `context_window` in tokens of one text.
    """

    context_window: int
    vocab_size: int
    model_revision: str
    weights_bytes: int = 0
    """What the weights have really taken on the device."""


@runtime_checkable
class EncoderExecutor(Protocol):
    """Encodes texts, one plan after the other."""

    @property
    def info(self) -> EncoderInfo:
        """What was loaded."""
        ...

    def encode(self, plan: EncodePlan) -> tuple[bytes, ...]:
        """One vector per text: 32-bit floats, little endian. An embedding has length 1; of labels
        there are probabilities.
        """
        ...

    def sleep(self) -> int:
        """Moves the weights to the host's memory; returns the bytes that the device got back.

        Only between steps, and not twice: until `wake` nothing may be asked but that and `close`.
        """
        ...

    def wake(self) -> int:
        """Brings the weights back to where they were; returns the bytes that the device gave."""
        ...

    def close(self) -> None:
        """Frees everything; nothing may follow."""
        ...


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host blocks of one KV group, for what fills and reads them beside plans."""

    buffer: memoryview
    """Bytes, one block behind the other; a block has all layers of its group."""
    block_bytes: int
    handle: int | None = None
    """The file that another process maps to share it, where there is one."""


class AdapterLoader(Protocol):
    """Has adapters on the device of an executor. Who asks sees to it that those which are there, or
    being loaded, take no more than `adapter_bytes` together.
    """

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to find out what an adapter takes, and whether it fits the model at all.

        `poll_adapters` tells; `wake` is called, by any thread, when it has something.
        """
        ...

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to load an adapter, beside the steps where that can be. It is there once
        `poll_adapters` has said so.
        """
        ...

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        """What has been found out and loaded since the last call."""
        ...

    def drop_adapter(self, digest: bytes) -> None:
        """Frees an adapter that is there; plans that were submitted may compute with it still,
        later ones do not. Rows of it that are no longer scheduled may be released later.
        """
        ...


class Executor(AdapterLoader, Protocol):
    """Carries out plans in the order of submission."""

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded."""
        ...

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """The host blocks of each KV group. They stay where they are, asleep or awake."""
        ...

    def submit(self, plan: ForwardPlan) -> None:
        """Starts a step; at most `info.max_in_flight` may be uncollected."""
        ...

    def collect(self) -> ForwardResult:
        """Waits for the oldest submitted step."""
        ...

    def sleep(self) -> int:
        """Moves the weights to the host's memory; returns the bytes that the device got back.

        Only between steps, and not twice: until `wake` nothing may be asked but that and `close`.
        What the KV memory held is lost, and all adapters are dropped.
        """
        ...

    def wake(self) -> int:
        """Brings the weights back to where they were; returns the bytes that the device gives.

        The KV memory is zeros. Weights may be on their way still: the next step, or `sleep`, waits
        for those that it needs, and fails when they do not come.
        """
        ...

    def close(self) -> None:
        """Frees everything; nothing may follow."""
        ...
