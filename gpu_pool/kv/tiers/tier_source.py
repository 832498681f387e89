"""Prefixes on their way back from the tiers into the engine's host blocks.

Owns the choice for each new sequence and its fetch; must not know how blocks are kept. Of layers
that look back only so far a part of a prefix is of no use, so that models with such fetch only what
takes next to nothing. Read next: `fetch_choice`, `tier_store`, `gpu_pool.kv.landing` (the caller).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Offer
from gpu_pool.kv.tiers.fetch_choice import Patience, count_worth, is_safe
from gpu_pool.kv.tiers.fetching import Fetch
from gpu_pool.kv.tiers.host_blocks import HostBlocks
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.tier_store import TierStore, WantedBlock
from gpu_pool.plan import SequenceId
from gpu_pool.prefill_cost import PrefillCost

_MOST_GAPS: Final = 16
"""Of layers that look back only so far: where more blocks are missing between those that are there,
nothing is fetched, since to look for what is whole would hold the engine up for longer and longer.
"""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What was found worth fetching for a sequence that has not started to."""

    space: TierNamespace
    patience: Patience
    began_s: float


@dataclass(frozen=True, slots=True)
class _Live:
    """A fetch under way."""

    fetch: Fetch
    first: int
    """The block of the prefix at the fetch's first place."""
    num_rows: int


class TierSource:
    """A `KvSource`. Used by the engine's own thread."""

    def __init__(
        self,
        store: TierStore,
        host: HostBlocks,
        layout: bytes,
        read_cost: Callable[[], PrefillCost],
        monotonic_s: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`read_cost` is what computing takes, as measured; `wake` is called by any thread when
        `poll` has news.
        """
        self._store = store
        self._host = host
        self._layout = layout
        self._read_cost = read_cost
        self._monotonic_s = monotonic_s
        self._wake = wake
        self._num_worth = 0 if host.has_local else host.block_size
        """Tokens that one place saves although the next ones do not come."""
        self._chosen: dict[SequenceId, _Choice] = {}
        self._live: dict[SequenceId, _Live] = {}

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        """What is there and sooner fetched than computed."""
        if len(prefix.keys) <= num_cached:
            return None
        space = TierNamespace(prefix.account_id, prefix.root_key, self._layout, prefix.regions)
        cost = self._read_cost()
        if self._host.has_local:
            end = self._choose_whole(space, prefix, num_cached, cost)
        else:
            end = self._choose_part(space, prefix, num_cached, cost)
        if end <= num_cached:
            return None
        first, last = num_cached * self._host.block_size, end * self._host.block_size
        choice = _Choice(space, Patience(cost, first, last), self._monotonic_s())
        self._chosen[sequence_id] = choice

        def find_deadline() -> int:
            live = self._live.get(sequence_id)
            num_landed = 0 if live is None else live.fetch.num_landed * self._num_worth
            return int((choice.began_s + choice.patience.bound_wait(num_landed)) * 1000) + 1

        is_divisible = not self._host.has_local
        return Offer(end, find_deadline(), is_divisible, leaves_room=True, extend=find_deadline)

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        """Begins to fill host blocks."""
        choice = self._chosen.pop(sequence_id)
        first = min(run.first for run in runs)
        end = max(run.first + len(run.host_ids) for run in runs)
        rows: list[list[WantedBlock]] = [[] for _ in range(first, end)]
        targets: list[list[memoryview]] = [[] for _ in range(first, end)]
        for run in runs:
            for place, (host_id, key) in enumerate(
                zip(run.host_ids, run.keys, strict=True), run.first - first
            ):
                rows[place].append(self._want(choice.space, run.group, key))
                targets[place].append(self._host.view(run.group, host_id))

        def is_late(num_landed: int) -> bool:
            elapsed_s = self._monotonic_s() - choice.began_s
            return choice.patience.is_over(elapsed_s, num_landed * self._num_worth)

        fetch = self._store.fetch(choice.space, rows, targets, is_late, self._wake)
        self._live[sequence_id] = _Live(fetch, first, len(rows))

    def decline(self, sequence_id: SequenceId) -> None:
        """Nothing is to be brought."""
        self._chosen.pop(sequence_id, None)

    def cancel(self, sequence_id: SequenceId) -> int:
        """Nobody waits any more; what has landed in order is of use."""
        live = self._live[sequence_id]
        live.fetch.give_up()
        return live.first + live.fetch.num_landed if self._num_worth else 0

    def poll(self) -> Sequence[LandingEnd]:
        """The fetches that are over, with what has come of each."""
        ends: list[LandingEnd] = []
        for sequence_id, live in tuple(self._live.items()):
            if live.fetch.is_over:
                del self._live[sequence_id]
                num_landed = live.fetch.num_landed
                has_landed = num_landed == live.num_rows
                ends.append(LandingEnd(sequence_id, has_landed, live.first + num_landed))
        return ends

    def _choose_part(
        self, space: TierNamespace, prefix: Prefix, num_cached: int, cost: PrefillCost
    ) -> int:
        """The end of what is worth it: any part of a prefix serves."""
        groups = range(len(self._host.memory))
        keys = prefix.keys[num_cached : num_cached + self._host.num_fetchable]
        row_s = self._store.measure(space, self._walk(space, keys, groups))
        backlog = self._store.find_backlog(space)
        block_size = self._host.block_size
        count = count_worth(row_s, block_size, backlog, cost, num_cached * block_size)
        if count < len(row_s):
            refused = keys[count : len(row_s)]
            self._store.note_refusal(space, list(self._walk(space, refused, groups)))
        return num_cached + count

    def _choose_whole(
        self, space: TierNamespace, prefix: Prefix, num_cached: int, cost: PrefillCost
    ) -> int:
        """The longest prefix of which every group has what later tokens read, if it is short."""
        whole = [g for g, reach in enumerate(self._host.reaches) if not reach.is_local]
        keys = prefix.keys[: num_cached + self._host.num_fetchable]
        rows = self._walk(space, keys[num_cached:], whole)
        row_s = self._store.measure(space, rows, is_sure=True)
        end = num_cached + len(row_s)
        for _ in range(_MOST_GAPS):
            if end <= num_cached:
                return num_cached
            local_s, gap = self._measure_local(space, keys[:end])
            if gap is None:
                break
            end = gap
        else:
            return num_cached
        seconds = sum(row_s[: end - num_cached]) + local_s
        seconds += self._store.find_backlog(space).count_ahead(seconds)
        computing_s = cost.measure(num_cached * self._host.block_size, end * self._host.block_size)
        if is_safe(seconds, computing_s):
            return end
        refused = self._walk(space, keys[num_cached:end], whole or range(len(self._host.reaches)))
        self._store.note_refusal(space, list(refused))
        return num_cached

    def _measure_local(
        self, space: TierNamespace, keys: Sequence[bytes]
    ) -> tuple[float, int | None]:
        """What it takes to fetch all that later tokens read of groups that look back only so far;
        and the last block of it that is not there: no prefix that reaches beyond it will do.
        """
        seconds, end = 0.0, len(keys)
        for group, reach in enumerate(self._host.reaches):
            if not reach.is_local:
                continue
            first = reach.find_first_block(end * self._host.block_size)
            rows = self._walk(space, keys[first:][::-1], [group])
            group_s = self._store.measure(space, rows, is_sure=True)
            if len(group_s) < end - first:
                return 0.0, end - len(group_s) - 1
            seconds += sum(group_s)
        return seconds, None

    def _walk(
        self, space: TierNamespace, keys: Sequence[bytes], groups: Sequence[int]
    ) -> Iterator[list[WantedBlock]]:
        """The blocks of some groups, place by place; named as far as somebody asks."""
        for key in keys:
            yield [self._want(space, group, key) for group in groups]

    def _want(self, space: TierNamespace, group: int, key: bytes) -> WantedBlock:
        """One block with its size."""
        return WantedBlock(space.name_block(group, key), self._host.memory[group].block_bytes)
