"""Steps leave a core nothing to collect, and what is in cycles is freed under endless load."""

import gc
import weakref
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from benchmarks.gpu.load import Load, carry, create_request, draw_prompt
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.garbage import settle_garbage

NUM_CHATS = 8
VOCAB_SIZE = 1000


class Cycle:
    """What only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


class Chats:
    """Chats that follow one another for so many steps."""

    def __init__(self, num_steps: int, in_step: Callable[[], None] = lambda: None) -> None:
        """`in_step` is done before each."""
        self._num_steps = num_steps
        self._in_step = in_step
        self._rng = Random(1)
        self.num_requests = 0

    def take(self, load: Load) -> Sequence[AddSequence] | None:
        self._num_steps -= 1
        if self._num_steps < 0:
            return None
        self._in_step()
        return [self._create() for _ in range(NUM_CHATS - load.num_running)]

    def _create(self) -> AddSequence:
        self.num_requests += 1
        prompt = draw_prompt(self._rng, self._rng.randint(4, 40), VOCAB_SIZE)
        return create_request(self.num_requests, prompt, self._rng.randint(2, 20))


def count_collections(chats: Chats) -> int:
    """Those that fell into the steps of a core under `chats`, with the collector as it stands."""
    info = create_double_info(num_blocks=64, vocab_size=VOCAB_SIZE)
    found: list[str] = []

    def note(phase: str, _: dict[str, Any]) -> None:
        found.append(phase)

    gc.callbacks.append(note)
    try:
        (run,) = carry(ExecutorDouble(info), [chats], SchedulerSettings(), is_timed=False)
    finally:
        gc.callbacks.remove(note)
    assert run.num_over == chats.num_requests
    return found.count("start")


@pytest.fixture(autouse=True)
def collector() -> Any:
    """As it was, afterwards."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


def test_hundreds_of_requests_come_and_go_without_a_collection() -> None:
    settle_garbage()
    chats = Chats(2000)
    assert count_collections(chats) == 0
    assert chats.num_requests > 500


def test_with_pythons_own_thresholds_there_would_be_some() -> None:
    gc.set_threshold(700, 10, 10)
    assert count_collections(Chats(2000)) > 3


@pytest.mark.parametrize("is_on", [True, False])
def test_cycles_of_a_core_that_never_rests_are_freed(is_on: bool) -> None:
    alive: set[weakref.ref[Cycle]] = set()
    most = 0

    def leave_cycles() -> None:
        nonlocal most
        for _ in range(50):
            alive.add(weakref.ref(Cycle(), alive.discard))
        most = max(most, len(alive))

    settle_garbage()
    if not is_on:  # the control
        gc.disable()
    count_collections(Chats(1000, leave_cycles))
    assert most < 20_000 if is_on else most == 50_000
