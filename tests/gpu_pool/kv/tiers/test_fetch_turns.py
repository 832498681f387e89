"""Accounts take turns at fetching, and each is told what the others cost it."""

import threading
from collections.abc import Iterator

import pytest

from gpu_pool.kv.tiers.fetch_choice import Backlog
from gpu_pool.kv.tiers.fetch_turns import FetchTurns

PATIENCE_S = 30


class Reads:
    """Reads of one thread, which waits at the first until all are asked for."""

    def __init__(self) -> None:
        self.turns = FetchTurns(1)
        self.done: list[str] = []
        self.may_go_on = threading.Event()
        self.is_at_first, self.is_over = threading.Event(), threading.Event()
        self.turns.add("first", self.wait)
        assert self.is_at_first.wait(PATIENCE_S)

    def wait(self) -> None:
        self.is_at_first.set()
        assert self.may_go_on.wait(PATIENCE_S)

    def ask(self, owner: str, count: int, num_bytes: int = 1) -> None:
        for _ in range(count):
            self.turns.add(owner, lambda: self.done.append(owner), num_bytes)

    def finish(self, last: str) -> list[str]:
        """Whose reads were done by when the last one of an account was."""
        by_then: list[str] = []

        def end() -> None:
            by_then.extend(self.done)
            self.is_over.set()

        self.turns.add(last, end)
        self.may_go_on.set()
        assert self.is_over.wait(PATIENCE_S)
        return by_then


@pytest.fixture
def reads() -> Iterator[Reads]:
    reads = Reads()
    yield reads
    reads.may_go_on.set()
    reads.turns.stop()
    reads.turns.join()


@pytest.mark.parametrize("other", ["b", "a"])
def test_many_fetches_hold_up_another_accounts_by_a_read_each(reads: Reads, other: str) -> None:
    """The control: one account's own come in the order in which it asks."""
    reads.ask("a", 1000)
    reads.ask(other, 3)
    done = reads.finish(other)
    if other == "b":
        assert done == ["a", "b"] * 3 + ["a"]
    else:
        assert len(done) == 1003


def test_what_others_fetch_counts_as_far_as_their_turns_come_first(reads: Reads) -> None:
    reads.ask("a", 1000)
    reads.ask("b", 5)
    assert reads.turns.find_backlog("c").count_ahead(10) == 10 + 5
    assert reads.turns.find_backlog("a").count_ahead(10) == 1000 + 5
    assert reads.turns.find_backlog("b").count_ahead(0) == 5 + 5
    reads.finish("a")
    reads.turns.stop()
    reads.turns.join()
    assert reads.turns.find_backlog("c").count_ahead(10) == 0


def test_a_read_that_fails_ends_no_thread_and_is_no_backlog(reads: Reads) -> None:
    def fail() -> None:
        raise OSError

    reads.turns.add("a", fail, 10)
    reads.ask("a", 1)
    assert reads.finish("a") == ["a"]
    reads.turns.stop()
    reads.turns.join()
    assert reads.turns.find_backlog("a").count_ahead(0) == 0


def test_nothing_is_read_once_stopped(reads: Reads) -> None:
    reads.ask("a", 3)
    reads.turns.stop()
    reads.ask("a", 3)
    reads.may_go_on.set()
    reads.turns.join()
    assert reads.done == []


def test_a_backlog_of_a_rate_that_nobody_knows_is_none_while_nothing_is_fetched() -> None:
    assert Backlog().in_seconds(float("inf")).count_ahead(1.0) == 0
    assert Backlog(1).in_seconds(float("inf")).count_ahead(1.0) == float("inf")
    assert Backlog(0, [1]).in_seconds(float("inf")).count_ahead(1.0) == 1.0
