"""The first step after a wake begins before the last layer is there, and computes the same."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from gpu_pool.models.network import CausalModel, Encoder
from gpu_pool.plan import SequenceId
from gpu_pool.weights.cpu_memory import DroppedMemory, KeptMemory, locate
from gpu_pool.weights.packed_writing import NO_COPY, WeightCopy
from gpu_pool.weights.tensor_search import find_portions
from gpu_pool.worker import worker as worker_module
from gpu_pool.worker.model_landing import ModelLanding
from gpu_pool.worker.model_memory import CpuPlaces, ModelMemory, list_parts
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama
from tests.gpu_pool.weights.slow_copies import SlowCopies

PROMPT = [1 + i % 200 for i in range(40)]
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
"""So that layers have whole pages."""


class HeldPlaces(CpuPlaces):
    """A CPU's places, from whose host weights come as slowly as a test wants."""

    def __init__(self, copies: SlowCopies) -> None:
        super().__init__()
        self._copies = copies
        self.weights: KeptMemory | None = None

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[torch.Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        portions = find_portions(model, list_parts(model))
        self.weights = KeptMemory(portions, 1, self._copies.read)
        return ModelMemory(self.weights, [DroppedMemory(kv)], copy=copy)


@pytest.fixture
def create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[SlowCopies], tuple[PlanDriver, Worker]]:
    def build(copies: SlowCopies) -> tuple[PlanDriver, Worker]:
        monkeypatch.setattr(worker_module, "create_places", lambda *_: HeldPlaces(copies))
        write_tiny_llama(tmp_path, **WIDE)
        worker = create_executor(WorkerSettings(model_dir=tmp_path, num_threads=1, num_blocks=50))
        return PlanDriver(worker), worker

    return build


def answer(driver: PlanDriver, prompt: list[int] = PROMPT) -> list[int]:
    added: SequenceId = driver.add(prompt)
    (output,) = driver.generate([added], 6)
    driver.release(added)
    return output


def run_beside(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs a call in a thread; what it returns or raises is in the list when it is over."""
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(call())
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ends


def test_layers_compute_before_the_last_one_is_there(
    create: Callable[[SlowCopies], tuple[PlanDriver, Worker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = SlowCopies()
    driver, worker = create(copies)
    expected = answer(driver)
    model = worker._model
    assert model is not None
    computed: list[int] = []
    attend = type(model.passage[0][0].attention).__call__

    def note(self: object, *arguments: object) -> object:
        computed.append(copies.num_begun)
        return attend(self, *arguments)

    monkeypatch.setattr(type(model.passage[0][0].attention), "__call__", note)
    whole = model.passage
    given = worker.sleep()
    assert worker.wake() == given
    thread, ends = run_beside(lambda: answer(driver))
    while (
        not computed
    ):  # the first layer computes although the last reads have not been let through
        copies.let_through(1)
        time.sleep(0.02)
    assert thread.is_alive()
    assert len(computed) < len(whole)
    copies.open_all()
    thread.join(60)
    assert ends == [expected]
    assert (
        computed[0] < copies.num_begun
    )  # the control: reads were left when the first one computed
    assert model.passage is whole  # nothing is left of it in later steps
    worker.close()


def test_a_copy_that_fails_in_the_middle_fails_the_step_and_every_later_one(
    create: Callable[[SlowCopies], tuple[PlanDriver, Worker]],
) -> None:
    copies = SlowCopies(num_broken=9)
    driver, worker = create(copies)
    answer(driver)
    worker.sleep()
    worker.wake()
    copies.open_all()
    for _ in range(2):
        with pytest.raises(OSError, match="vanished from the host"):
            answer(driver)
    with pytest.raises(OSError, match="vanished from the host"):
        worker.sleep()
    worker.close()


def test_a_sleep_in_the_middle_waits_and_loses_nothing(
    create: Callable[[SlowCopies], tuple[PlanDriver, Worker]],
) -> None:
    copies = SlowCopies()
    driver, worker = create(copies)
    expected = answer(driver)
    given = worker.sleep()
    worker.wake()
    copies.let_through(3)
    thread, ends = run_beside(worker.sleep)
    thread.join(0.2)
    assert thread.is_alive()  # the control: it is in the middle
    copies.open_all()
    thread.join(60)
    assert ends == [given]
    worker.wake()
    assert answer(driver) == expected
    worker.close()


def test_a_model_is_closed_in_the_middle(
    create: Callable[[SlowCopies], tuple[PlanDriver, Worker]],
) -> None:
    copies = SlowCopies()
    driver, worker = create(copies)
    answer(driver)
    before = threading.active_count()
    worker.sleep()
    worker.wake()
    thread, ends = run_beside(worker.close)
    copies.let_through(1)
    thread.join(60)
    assert ends == [None]
    assert threading.active_count() == before


def test_a_prompt_of_one_token_waits_for_all_layers(
    create: Callable[[SlowCopies], tuple[PlanDriver, Worker]],
) -> None:
    """Such a step may be replayed from a recording, which asks no layer."""
    copies = SlowCopies()
    driver, worker = create(copies)
    expected = answer(driver, [7])
    worker.sleep()
    worker.wake()
    copies.open_all()
    assert answer(driver, [7]) == expected
    worker.close()


class PoisonedLanding:
    """What has not landed reads as rubbish, to the last byte and whatever its layout."""

    num_bytes = 0

    def __init__(self, portions: Sequence[Sequence[torch.Tensor]], num_skipped: int = 0) -> None:
        """The last `num_skipped` portions never come, although nobody says so."""
        spans = [[locate(tensor) for tensor in portion] for portion in portions]
        self.sizes = [sum(span.num_bytes for span in portion) for portion in spans]
        self._content = [[(span, bytes(span.view())) for span in portion] for portion in spans]
        self._last = len(portions) - num_skipped - 1
        for portion in spans:
            for span in portion:
                span.view()[:] = b"\xff" * span.num_bytes

    def wait_for(self, portion: int) -> None:
        if portion <= self._last:
            for span, content in self._content[portion]:
                span.view()[:] = content

    def finish(self) -> None:
        self.wait_for(len(self._content) - 1)

    def abandon(self) -> None: ...


@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_a_layer_of_any_family_needs_no_weight_of_a_later_one(family: str, tmp_path: Path) -> None:
    if family == "llama":
        write_tiny_llama(tmp_path)
        folder = tmp_path
    else:
        model_type, changes = FAMILIES[family]
        folder = write_checkpoint(tmp_path, model_type, **changes)
    worker = create_executor(WorkerSettings(model_dir=folder, num_threads=1, num_blocks=60))
    driver, model = PlanDriver(worker), worker._model
    assert model is not None
    expected = answer(driver)
    portions = find_portions(model, model.passage)
    landing = PoisonedLanding(portions)
    assert max(landing.sizes[1:]) > 0
    assert landing.sizes[0] < 0.8 * sum(landing.sizes)
    worker._landing = ModelLanding(model, landing)
    assert answer(driver) == expected
    # The control: one portion that does not come shows.
    worker._landing = ModelLanding(model, PoisonedLanding(portions, num_skipped=1))
    with pytest.raises(Exception):  # noqa: B017, PT011  # numbers that are none draw no token
        assert answer(driver) == expected
    worker.close()
