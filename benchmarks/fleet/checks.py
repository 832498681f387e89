"""What must hold of a run: texts, ends, the ledger and the law, each found by looking.

Pure but for reading: outcomes as clients saw them, rows of the ledger, lines of the nodes' logs.
Owns what counts as a fault and how it is worded. Read next: `benchmarks.fleet.proof`.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.fleet.fleet import Tenant
from benchmarks.fleet.load import Outcome, Question
from contracts.ids import RequestId
from contracts.pricing import Price, compute_charge
from contracts.usage import Outcome as LedgerOutcome
from contracts.usage import UsageRecord, read_unix_ms

GIVEN_UP = "hand_over_given_up"
LET_GO = "member_dismissed"
CAME, OVER = "a request has come", "a request is over"
ABORTED_WITHIN_S = 1.0
"""After the kill of a gateway no node computes any longer for it."""
MAX_UNSEEN = 8
"""Tokens that a killed gateway may have counted and not brought to its client any more."""


@dataclass(frozen=True)
class Downtime:
    """When a gateway was killed without a word, and when its last socket was gone."""

    gateway: str
    killed_unix_s: float
    gone_unix_s: float


@dataclass(frozen=True)
class Arrival:
    """A request at a node, as its log has it."""

    node: str
    request_id: str
    account_id: str
    attempt: int = 1
    over_unix_s: float = math.inf
    """When it was over there; infinite while the log does not say."""

    @property
    def began_unix_s(self) -> float:
        """When it came to its gateway."""
        return read_unix_ms(RequestId(self.request_id)) / 1000


def find_client_faults(
    outcomes: Iterable[Outcome], quiet: Mapping[Question, Outcome], kills: list[Downtime]
) -> list[str]:
    """Texts and counts that are not those of a quiet run, and ends that no killed gateway explains.

    Who is told more tokens than a quiet run had pays for some of them twice.
    """
    faults: list[str] = []
    for one in outcomes:
        wanted = quiet[one.question]
        told, usual = _count_told(one), _count_told(wanted)
        if not one.failure and one.text != wanted.text:
            faults.append(f"{one.request_id}: another text than undisturbed")
        elif not one.failure and told != usual:
            faults.append(f"{one.request_id}: told {told} tokens, {usual} undisturbed")
        elif one.failure and not wanted.text.startswith(one.text):
            faults.append(f"{one.request_id}: what came before the cut is not the beginning")
        elif one.failure and not is_explained(one, kills):
            faults.append(f"{one.request_id} at {one.gateway}: {one.failure}")
    return faults


def is_explained(one: Outcome, kills: list[Downtime]) -> bool:
    """True when the request's own gateway was killed while it ran, or died as it was sent."""
    return any(
        one.gateway == kill.gateway
        and one.began_unix_s <= kill.gone_unix_s
        and kill.killed_unix_s <= one.ended_unix_s
        for kill in kills
    )


def measure_aborts(
    records: Iterable[UsageRecord], kills: list[Downtime], arrivals: Iterable[Arrival]
) -> dict[str, float]:
    """How long after its gateway's kill each request was over at the node that had it last.

    Whose a request is, its row says, for the client of a whole answer has not heard its name yet;
    one without a row, for which nothing had come, counts as the killed gateway's.
    """
    last = {one.request_id: one for one in sorted(arrivals, key=lambda one: one.attempt)}
    gateways = {str(row.request_id): str(row.gateway_id) for row in records}
    return {
        request_id: one.over_unix_s - kill.killed_unix_s
        for request_id, one in last.items()
        for kill in kills
        if is_under_way(one, kill) and gateways.get(request_id, kill.gateway) == kill.gateway
    }


def is_under_way(one: Arrival, kill: Downtime) -> bool:
    """True when a request, of whichever gateway, was at its node at the moment of the kill."""
    return one.began_unix_s <= kill.gone_unix_s and kill.killed_unix_s <= one.over_unix_s


def find_abort_faults(waits_s: Mapping[str, float], kills: list[Downtime]) -> list[str]:
    """Requests that nodes went on with for a gateway that was gone, by `measure_aborts`."""
    if kills and not waits_s:
        return ["no request was at a node when its gateway was killed, so that nothing was tried"]
    return [
        f"{request_id}: over {wait_s:.2f} s after the kill of its gateway"
        for request_id, wait_s in waits_s.items()
        if wait_s > ABORTED_WITHIN_S
    ]


def find_ledger_faults(
    outcomes: list[Outcome],
    records: Iterable[UsageRecord],
    prices: list[Price],
    count_tokens: Callable[[str], int],
) -> list[str]:
    """Requests that are not charged once and exactly for what came.

    Free is a whole answer that a killed gateway had yet to send, of which nothing has come.
    `count_tokens` says how many tokens a text has, some of whose tokens may not show in it.
    """
    rows = list(records)
    whole = {one.question: one for one in outcomes if one.usage and not one.failure}
    counts = Counter(row.request_id for row in rows)
    faults = [f"{request_id}: {n} rows" for request_id, n in counts.items() if n > 1]
    by_id = {str(row.request_id): row for row in rows}
    by_version = {price.version: price for price in prices}
    known = {one.request_id for one in outcomes if one.request_id}
    num_nameless = sum(not one.request_id for one in outcomes)
    num_unknown = len(by_id.keys() - known)
    if num_unknown > num_nameless:
        faults.append(f"{num_unknown} rows of requests that {num_nameless} clients may have made")
    for one in outcomes:
        row = by_id.get(one.request_id)
        if not one.request_id or one.status != 200:
            continue
        if row is None:
            faults.append(f"{one.request_id}: no row")
            continue
        if one.failure:
            faults += _compare_cut(one, row, whole.get(one.question, one), count_tokens)
        else:
            faults += _compare(one, row)
    for row in rows:
        is_named = row.request_id in known
        price = by_version.get(row.price_version or 0)
        is_free = row.price_version is None and not (is_named or row.cost_nano)
        cost_nano = None if price is None else compute_charge(price, row.tokens).cost_nano
        if row.cost_nano != cost_nano and not is_free:
            faults.append(f"{row.request_id}: costs {row.cost_nano} for {row.tokens}")
        if not is_named and not _is_possible(row, whole):
            faults.append(f"{row.request_id}: nobody has asked what is charged as {row}")
    return faults


def _count_told(one: Outcome) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the answer, as the client was told."""
    usage = one.usage or {}
    return usage.get("prompt_tokens"), usage.get("completion_tokens")


def _is_possible(row: UsageRecord, whole: Mapping[Question, Outcome]) -> bool:
    """True when the account has a question of so many tokens whose answer is no shorter: all that
    can be said of a request that was cut before its client heard its name.
    """
    num_prompt = row.tokens.num_uncached + row.tokens.num_cached
    counts = [
        _count_told(one)
        for question, one in whole.items()
        if question.tenant.account_id == row.account_id
    ]
    return any(num_prompt == told and row.tokens.num_output <= (most or 0) for told, most in counts)


def _compare(one: Outcome, row: UsageRecord) -> list[str]:
    """What is wrong with the row of a request that was answered."""
    tokens, told = row.tokens, _count_told(one)
    charged = tokens.num_uncached + tokens.num_cached, tokens.num_output
    is_right = row.outcome is LedgerOutcome.COMPLETE and charged == told
    return [] if is_right else [f"{one.request_id}: told {told}, charged {charged} {row.outcome}"]


def _compare_cut(
    one: Outcome, row: UsageRecord, whole: Outcome, count_tokens: Callable[[str], int]
) -> list[str]:
    """What is wrong with the row of an answer that was cut; `whole` is the same one in full."""
    tokens, usage = row.tokens, whole.usage or {}
    num_came, num_whole = count_tokens(one.text), usage.get("completion_tokens", 0)
    num_unseen = max(num_whole - count_tokens(whole.text), 0) + MAX_UNSEEN
    is_right = (
        row.outcome is not LedgerOutcome.COMPLETE
        and tokens.num_uncached + tokens.num_cached == usage.get("prompt_tokens")
        and num_came <= tokens.num_output <= num_came + num_unseen
    )
    return [] if is_right else [f"{one.request_id}: cut after {num_came} tokens, charged as {row}"]


def read_arrivals(log: Path, node: str) -> list[Arrival]:
    """Every request that a node's log has, and when it was over."""
    arrivals: dict[tuple[str, int], Arrival] = {}
    for entry in _read_entries(log):
        if entry.get("event") not in (CAME, OVER):
            continue
        request_id, attempt = entry["request_id"], int(entry["attempt"])
        if entry["event"] == CAME:
            arrival = Arrival(node, request_id, entry["account_id"], attempt)
        else:
            over_unix_s = datetime.fromisoformat(entry["timestamp"]).timestamp()
            arrival = replace(arrivals[request_id, attempt], over_unix_s=over_unix_s)
        arrivals[request_id, attempt] = arrival
    return list(arrivals.values())


def count_travelled(arrivals: Iterable[Arrival]) -> int:
    """Requests that were at more than one node, be it for their prompt alone."""
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for one in arrivals:
        nodes[one.request_id].add(one.node)
    return sum(len(visited) > 1 for visited in nodes.values())


def find_move_faults(
    num_moved: int, drained: Collection[str], kills: Collection[Downtime]
) -> list[str]:
    """Drains, or kills, after which no request was at a second node: nobody had to be moved, so
    that it was not shown that anybody can be.
    """
    if num_moved or not (drained or kills):
        return []
    what = f"{', '.join(drained)} drained" if drained else "processes killed"
    return [f"{what}, and no request was at a second node, so that nothing was tried"]


def find_member_faults(members: Mapping[str, int], enrolled: Collection[str]) -> list[str]:
    """Gateways that do not have the enrolled nodes as members in the end; `members` counts them."""
    return [
        f"{gateway} has {count} members of {len(enrolled)}"
        for gateway, count in members.items()
        if count != len(enrolled)
    ]


def count_let_go(log: Path, since_unix_s: float) -> int:
    """How often a gateway let a member go since a moment, by its log."""
    since = datetime.fromtimestamp(since_unix_s, UTC)
    return sum(
        entry.get("event") == LET_GO and datetime.fromisoformat(entry["timestamp"]) >= since
        for entry in _read_entries(log)
    )


def count_given_up(log: Path, since_unix_s: float) -> Counter[str]:
    """Why nodes that answer did without another's blocks since a moment, by a gateway's log."""
    since = datetime.fromtimestamp(since_unix_s, UTC)
    return Counter(
        entry["reason"]
        for entry in _read_entries(log)
        if entry.get("event") == GIVEN_UP and datetime.fromisoformat(entry["timestamp"]) >= since
    )


def find_residency_faults(
    arrivals: Iterable[Arrival], tenants: Iterable[Tenant], regions: Mapping[str, str]
) -> list[str]:
    """Requests at nodes of regions that their account does not allow."""
    allowed = {tenant.account_id: tenant.regions for tenant in tenants}
    return [
        f"{arrival.request_id} of {arrival.account_id} was at {arrival.node}"
        for arrival in arrivals
        if regions[arrival.node] not in allowed[arrival.account_id]
    ]


def find_unseen_faults(
    records: Iterable[UsageRecord],
    arrivals: Iterable[Arrival],
    regions: Mapping[str, str],
    kills: list[Downtime],
) -> list[str]:
    """Where the ledger and the nodes' logs, of the same time, do not speak of the same requests: a
    log that leaves some out says nothing of the law, and who is at a node is charged for it, but
    for what a killed gateway had heard nothing of.
    """
    logged = list(arrivals)
    seen = {(one.request_id, one.node) for one in logged}
    rows = {str(row.request_id): row for row in records}
    faults = [
        f"{request_id}: charged for {row.node_id} in {row.region}, whose log does not have it"
        for request_id, row in rows.items()
        if (request_id, row.node_id) not in seen or regions.get(str(row.node_id)) != row.region
    ]
    free = {
        one.request_id: one.node
        for one in logged
        if one.request_id not in rows and not any(is_under_way(one, kill) for kill in kills)
    }
    return faults + [
        f"{each}: was at {node}, and nobody paid for it" for each, node in free.items()
    ]


def _read_entries(log: Path) -> list[dict[str, str]]:
    """The lines of a log that are JSON; a killed process may leave half of one."""
    entries: list[dict[str, str]] = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return [entry for entry in entries if isinstance(entry, dict)]
