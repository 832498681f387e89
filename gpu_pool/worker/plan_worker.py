"""A loaded model that carries out plans, sleeps and wakes.

Owns the order of steps and moves; must not know files or how the model came to be.
Read next: `worker` (how it is put together), `model_landing`, `gpu_pool.runner.model_runner`.
"""

from collections import deque
from collections.abc import Callable, Sequence

from gpu_pool.lora.adapter_memory import AdapterMemory
from gpu_pool.models.network import CausalModel
from gpu_pool.plan import (
    AdapterFile,
    AdapterNews,
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    HostMemory,
)
from gpu_pool.runner.group_blocks import KvGroupMemory
from gpu_pool.runner.model_runner import ModelRunner, StepUnderWay
from gpu_pool.worker.adapters import create_adapters
from gpu_pool.worker.lanes import LaneChoice
from gpu_pool.worker.model_landing import ModelLanding
from gpu_pool.worker.model_loading import LoadedAs
from gpu_pool.worker.model_memory import ModelMemory
from gpu_pool.worker.settings import WorkerSettings


class Worker:
    """An `Executor` that begins each plan when it is submitted."""

    def __init__(
        self,
        model: CausalModel,
        runner: ModelRunner,
        memory: ModelMemory,
        adapters: AdapterMemory,
        info: ExecutorInfo,
    ) -> None:
        """Takes what `create_executor` built."""
        self.adapters = adapters
        """Those that are there; of one of several ranks, for whoever loads them on all."""
        self._model: CausalModel | None = model
        self._memory = memory
        self._landing: ModelLanding | None = None
        """Of weights that no step has been through since the wake."""
        self._num_given = 0
        """Bytes that the last sleep gave back, which the next wake takes."""
        self._runner: ModelRunner | None = runner
        self._info = info
        self._under_way: deque[StepUnderWay] = deque()

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded."""
        return self._info

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """The host blocks of each KV group."""
        assert self._runner is not None, "the worker is closed"
        return self._runner.host_memory

    def take_in(self, drawn: ForwardResult) -> None:
        """Learns what another rank of the same model has drawn."""
        assert self._runner is not None, "the worker is closed"
        self._runner.take_in(drawn)

    def submit(self, plan: ForwardPlan) -> None:
        """Begins a step; where one may be in flight, it is over then."""
        assert self._runner is not None, "the worker is closed"
        assert len(self._under_way) < self._info.max_in_flight, "too many plans in flight"
        self._memory.lull.begin()
        if self._landing is None:
            self._under_way.append(self._runner.begin(plan))
            return
        with self._landing.awaited_by(plan):
            self._under_way.append(self._runner.begin(plan))
        self._landing = None

    def collect(self) -> ForwardResult:
        """The oldest submitted step's result."""
        assert self._runner is not None, "the worker is closed"
        try:
            return self._runner.finish(self._under_way.popleft())
        finally:
            self._memory.lull.end()

    def sleep(self) -> int:
        """Moves the weights to the host and drops the KV memory, as `Executor` has it."""
        assert self._runner is not None, "the worker is closed"
        assert not self._under_way, "a step is under way"
        self.finish_landing()
        self.adapters.clear()
        self._num_given = self._memory.leave()
        return self._num_given

    def wake(self) -> int:
        """Brings the weights back, as `Executor` has it; the first step takes them as they come."""
        assert self._model is not None, "the worker is closed"
        self._landing = ModelLanding(self._model, self._memory.begin_return())
        return self._num_given

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to find out what it takes, as `AdapterLoader` has it."""
        self.adapters.measure(adapter, wake)

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Begins to load it beside the steps, as `AdapterLoader` has it."""
        self.adapters.load(adapter, wake)

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        """What has become of them since the last call."""
        return self.adapters.poll()

    def drop_adapter(self, digest: bytes) -> None:
        """Frees it, as `AdapterLoader` has it."""
        self.adapters.drop(digest)

    def finish_landing(self) -> None:
        """Returns when no weights are on their way. Raises: `OSError` when some did not come."""
        if self._landing is not None:
            self._landing.finish()
            self._landing = None

    def close(self) -> None:
        """Frees model and KV memory; nothing may follow."""
        if self._runner is not None:
            self._runner.close()
        if self._landing is not None:
            self._landing.abandon()
        self.adapters.close()
        self._runner = self._model = self._landing = None
        self._memory.close()
        self._under_way.clear()


def create_worker(
    model: CausalModel,
    groups: Sequence[KvGroupMemory],
    lane: LaneChoice,
    memory: ModelMemory,
    info: ExecutorInfo,
    settings: WorkerSettings,
    loaded: LoadedAs,
) -> Worker:
    """What carries out plans on the model."""
    adapters = create_adapters(model, loaded, settings)
    runner = ModelRunner(
        groups,
        lambda blocks, table_size: lane.create(model, blocks, table_size, settings.max_rows),
        vocab_size=info.vocab_size,
        context_window=info.context_window,
        find_adapter=adapters.find,
    )
    return Worker(model, runner, memory, adapters, info)
