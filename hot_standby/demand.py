"""What is remembered of requests: how long they pause, and when in the day they begin again.

Owns histories by model, entry region and regions that are allowed and preferred, and what they
foretell. Takes every time as a parameter; must not know nodes. Units: seconds since 1970, unless
named otherwise. Read next: `hot_standby.cost`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.demand import NUM_GAP_BUCKETS, DemandSample
from contracts.fleet_view import FleetView
from contracts.ids import BootId, GatewayId, ModelName, RegionId
from hot_standby.settings import DemandSettings

S_PER_DAY: Final = 86_400
NUM_SLOTS: Final = 96
SLOT_S: Final = S_PER_DAY // NUM_SLOTS
_PRIOR: Final = 3.0
"""Gaps that a history is taken to have beyond those it has seen, as its mean rate has them."""
_TYPICAL_BURSTS: Final = 20.0
"""Bursts like everybody's that each history is taken to have had."""
_PRIOR_S: Final = 1800.0
"""How long a model is taken to have been asked for once, when nothing is known of it."""
_DAY_WEIGHT: Final = 0.4
"""Of the newest day in the profile of days."""
_MIDS_S: Final = tuple(2 ** (bucket - 0.5) / 1000 for bucket in range(NUM_GAP_BUCKETS))
"""The middle of each bucket of gaps, on the scale of its logarithm."""


@dataclass(frozen=True, slots=True)
class DemandKey:
    """Whose requests are counted together."""

    model: ModelName
    entry: RegionId
    """Where the gateways are that they come to."""
    allowed: tuple[RegionId, ...] | None
    """Where they may be computed; None means anywhere."""
    preferred: tuple[RegionId, ...] = ()
    """Where they are computed before all others; empty: nowhere."""

    def has_rather(self, region: RegionId) -> bool:
        """True for who prefers other regions than this one."""
        return bool(self.preferred) and region not in self.preferred

    def may_use(self, region: RegionId) -> bool:
        """True where the law lets these requests go."""
        return self.allowed is None or region in self.allowed


@dataclass(frozen=True, slots=True)
class Demand:
    """What one history foretells at one moment."""

    key: DemandKey
    imminence: float
    """From 0 to 1: how much a wait is worth that the next arrival would have, discounted by how
    long it takes to come. By the patience that goes with a device."""
    host_imminence: float
    """The same by the longer patience that goes with a host's memory."""
    burst_per_s: float
    """Arrivals a second inside a burst."""
    burst_length: float
    """How many more arrivals follow a first one before the next pause."""

    def count_waiting(self, wait_s: float) -> float:
        """How many requests a wait of `wait_s` holds up on average, each by all of it."""
        return 1 + min(self.burst_per_s * wait_s, self.burst_length) / 2


@dataclass(frozen=True, slots=True)
class Bursts:
    """Many bursts in sum: the gaps inside them, how long these lasted, the pauses between."""

    num_gaps: float
    lasted_s: float
    num_pauses: float


@dataclass(slots=True)
class DemandHistory:
    """One key's past; older gaps weigh less."""

    gaps: list[float] = field(default_factory=lambda: [0.0] * NUM_GAP_BUCKETS)
    last_arrival_s: float = 0.0
    """0: never."""
    observed_s: float = 0.0
    """How long it has been watched; what is long ago counts less."""
    starts_per_slot: list[float] = field(default_factory=lambda: [0.0] * NUM_SLOTS)
    """Bursts that begin in each slot of a day, UTC, averaged over days."""
    days_per_slot: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    """How often each slot has been lived through."""
    starts_now: float = 0.0
    """Bursts that have begun in the slot that lasts."""

    def absorb(self, gaps: Sequence[int], last_arrival_s: float, pause_s: float) -> None:
        """Counts new gaps; those longer than `pause_s` began a burst each."""
        for bucket, count in enumerate(gaps):
            self.gaps[bucket] += count
            if _MIDS_S[bucket] > pause_s:
                self.starts_now += count
        self.last_arrival_s = max(self.last_arrival_s, last_arrival_s)

    def fade(self, share: float, passed_s: float) -> None:
        """Lets what is known weigh `share` of what it did, while `passed_s` go by."""
        self.gaps = [count * share for count in self.gaps]
        self.observed_s = self.observed_s * share + passed_s

    def end_slot(self, slot: int) -> None:
        """Writes the slot that is over into the profile of the day."""
        before = self.starts_per_slot[slot]
        weight = _DAY_WEIGHT if self.days_per_slot[slot] else 1.0
        self.starts_per_slot[slot] = before + weight * (self.starts_now - before)
        self.days_per_slot[slot] += 1
        self.starts_now = 0.0

    def sum_bursts(self, patience_s: float) -> Bursts:
        """The gaps within bursts, and how many pauses there were between them."""
        short = [count for count, mid in zip(self.gaps, _MIDS_S, strict=True) if mid <= patience_s]
        lasted_s = sum(count * mid for count, mid in zip(short, _MIDS_S, strict=False))
        return Bursts(sum(short), lasted_s, sum(self.gaps) - sum(short) + 1)

    def foretell(
        self, key: DemandKey, now_s: float, settings: DemandSettings, typical: Bursts
    ) -> Demand:
        """What is to be expected; what is further off than the patience counts for little.

        A key that has had few bursts is taken to have `typical` ones: guesses from two or three
        would decide between models by chance.
        """
        own = self.sum_bursts(settings.patience_s)
        length = typical.num_gaps / typical.num_pauses
        num_gaps = own.num_gaps + _TYPICAL_BURSTS * length
        typical_s = typical.lasted_s / typical.num_pauses
        lasted_s = own.lasted_s + _TYPICAL_BURSTS * typical_s
        return Demand(
            key,
            self._foretell_imminence(now_s, settings.patience_s),
            self._foretell_imminence(now_s, settings.host_patience_s),
            burst_per_s=num_gaps / lasted_s if lasted_s else 0.0,
            burst_length=num_gaps / (own.num_pauses + _TYPICAL_BURSTS),
        )

    def _foretell_imminence(self, now_s: float, patience_s: float) -> float:
        """The mean of `exp(-wait / patience_s)` over what the next wait may be."""
        if not self.last_arrival_s:
            return self._foretell_from_day(now_s, patience_s)
        idle_s = max(now_s - self.last_arrival_s, 0.001)
        num_pauses = sum(
            count for count, mid in zip(self.gaps, _MIDS_S, strict=True) if mid > patience_s
        )
        num_due = (num_pauses + 1) / (self.observed_s + _PRIOR_S) * patience_s
        expected, num_longer = _PRIOR * num_due / (1 + num_due), _PRIOR
        for bucket, count in enumerate(self.gaps):
            longest_s = 2**bucket / 1000
            if count and longest_s > idle_s:
                begin_s = max(longest_s / 2, idle_s)
                part = count * math.log2(longest_s / begin_s) if begin_s > longest_s / 2 else count
                left_s = math.sqrt(begin_s * longest_s) - idle_s
                expected += part * math.exp(-max(left_s, 0.0) / patience_s)
                num_longer += part
        imminence = expected / num_longer
        if idle_s <= patience_s:
            return imminence
        num_days = self.days_per_slot[_find_slot(now_s + patience_s / 2)]
        trust = num_days / (num_days + 1)
        return imminence + trust * (self._foretell_from_day(now_s, patience_s) - imminence)

    def _foretell_from_day(self, now_s: float, patience_s: float) -> float:
        """The same from the profile of the day alone, a little ahead of time."""
        slots = {_find_slot(now_s), _find_slot(now_s + patience_s / 2)}
        rate = max(self.starts_per_slot[slot] for slot in slots) / SLOT_S * patience_s
        return rate / (1 + rate)


class DemandBook:
    """All histories; belongs to one planner's process."""

    def __init__(self, settings: DemandSettings, max_keys: int = 16_384) -> None:
        """Beyond `max_keys` the longest idle are forgotten."""
        self._settings = settings
        self._max_keys = max_keys
        self._histories: dict[DemandKey, DemandHistory] = {}
        self._seen: dict[GatewayId, tuple[BootId, dict[DemandKey, DemandSample]]] = {}
        self._now_s = 0.0

    def __len__(self) -> int:
        return len(self._histories)

    def absorb(self, view: FleetView) -> None:
        """Counts what has come to a gateway since its last view, or since its process began."""
        is_new = view.gateway_id not in self._seen
        boot_id, seen = self._seen.get(view.gateway_id, (view.boot_id, {}))
        seen = seen if boot_id == view.boot_id else {}
        # What came before this process did belongs to no slot that can be named.
        pause_s = math.inf if is_new else self._settings.patience_s
        now = {_to_key(sample, view.region): sample for sample in view.demand}
        for key, sample in now.items():
            before = seen.get(key)
            known = before.gaps if before is not None else (0,) * NUM_GAP_BUCKETS
            new = [max(count - old, 0) for count, old in zip(sample.gaps, known, strict=True)]
            history = self._histories.setdefault(key, DemandHistory())
            if before is None or sample.num_arrivals != before.num_arrivals:
                history.absorb(new, sample.last_arrival_unix_ms / 1000, pause_s)
        self._seen[view.gateway_id] = view.boot_id, now

    def advance(self, now_s: float) -> None:
        """Lets time pass: the past fades, and slots of the day come to an end."""
        before_s, self._now_s = self._now_s or now_s, max(now_s, self._now_s)
        share = 0.5 ** ((self._now_s - before_s) / self._settings.half_life_s)
        first, last = int(before_s // SLOT_S), int(self._now_s // SLOT_S)
        over = range(max(first, last - NUM_SLOTS), last)
        for history in self._histories.values():
            history.fade(share, self._now_s - before_s)
            for slot in over:
                history.end_slot(slot % NUM_SLOTS)
        if len(self._histories) > self._max_keys:
            by_use = sorted(self._histories, key=lambda key: self._histories[key].last_arrival_s)
            for key in by_use[: len(by_use) - self._max_keys]:
                del self._histories[key]

    def foretell(self, now_s: float) -> tuple[Demand, ...]:
        """What every history says, in a fixed order."""
        bursts = [
            history.sum_bursts(self._settings.patience_s) for history in self._histories.values()
        ]
        typical = Bursts(
            sum(each.num_gaps for each in bursts),
            sum(each.lasted_s for each in bursts),
            sum(each.num_pauses for each in bursts) or 1.0,
        )
        return tuple(
            history.foretell(key, now_s, self._settings, typical)
            for key, history in self._list_ordered()
        )

    def dump(self) -> list[tuple[DemandKey, DemandHistory]]:
        """Every history, to be kept elsewhere."""
        return list(self._list_ordered())

    def load(self, histories: Iterable[tuple[DemandKey, DemandHistory]]) -> None:
        """Takes over what an earlier process knew of days; gaps come from the gateways again."""
        for key, kept in histories:
            history = self._histories.setdefault(key, DemandHistory())
            history.starts_per_slot = list(kept.starts_per_slot)
            history.days_per_slot = list(kept.days_per_slot)

    def _list_ordered(self) -> Iterator[tuple[DemandKey, DemandHistory]]:
        yield from sorted(self._histories.items(), key=lambda item: _order(item[0]))


def _to_key(sample: DemandSample, entry: RegionId) -> DemandKey:
    """The sample's key at a gateway in `entry`."""
    allowed = None if sample.allowed_regions is None else tuple(sorted(sample.allowed_regions))
    return DemandKey(sample.model, entry, allowed, tuple(sorted(sample.preferred_regions)))


def _order(key: DemandKey) -> tuple[str, str, bool, tuple[RegionId, ...], tuple[RegionId, ...]]:
    """Sorts keys, of which some name no regions."""
    return key.model, key.entry, key.allowed is None, key.allowed or (), key.preferred


def _find_slot(unix_s: float) -> int:
    """The slot of the day, UTC."""
    return int(unix_s % S_PER_DAY // SLOT_S)
