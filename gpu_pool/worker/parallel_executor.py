"""One model on several ranks as one `Executor`: every rank is a process of its own.

Owns what the ranks are told and what is made of their answers; the model is theirs alone, so that
nothing that they wait for can hold up this process. Read next: `rank_team`, `rank_process`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace as change

from contracts.sections import LogSettings
from gpu_pool.models.network import CausalNetwork
from gpu_pool.parallel.place import ParallelShape, RankPlace
from gpu_pool.parallel.tensor_group import ALONE
from gpu_pool.plan import (
    AdapterFile,
    AdapterNews,
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    HostMemory,
    KvGroup,
)
from gpu_pool.weights.guard import WeightGuard
from gpu_pool.worker.rank_team import OnLost, RankTeam, read_own_id
from gpu_pool.worker.rank_words import (
    DropAdapter,
    LoadAdapter,
    MeasureAdapter,
    RankAdapted,
    RankJoined,
    RankMoved,
    RankReady,
    RankStepped,
    RunStep,
    SleepRank,
    StartRank,
    ToRank,
    WakeRank,
)
from gpu_pool.worker.settings import WorkerSettings

_START_S: Final = 60.0
"""How long a process may take before it waits for the others: Python and its libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSurroundings:
    """What ranks are told besides the model's settings."""

    rendezvous: Path
    """A file that is not there yet, in a folder that only this user may enter."""
    join_timeout_s: float = 60.0
    step_timeout_s: float
    """How long one step may take."""
    log: LogSettings
    log_context: dict[str, str]
    on_lost: OnLost | None = None
    """Told when a rank ends while nothing is asked of it."""


class ParallelExecutor:
    """An `Executor` over ranks that run. Steps of a pipeline overlap: one per stage in flight."""

    def __init__(self, team: RankTeam, info: ExecutorInfo, step_timeout_s: float) -> None:
        """Takes what `create_parallel_executor` built."""
        self._team = team
        self._info = info
        self._step_timeout_s = step_timeout_s
        self._num_in_flight = 0
        self._drawn: list[ForwardResult] = []
        """Collected since the last plan: what the ranks that do not draw have yet to learn."""
        self._results: deque[ForwardResult] = deque()
        """Of steps that were over before an answer about an adapter had come."""
        self._news: list[AdapterNews] = []
        self._is_sound = True

    @property
    def info(self) -> ExecutorInfo:
        """What was loaded, all ranks together."""
        return self._info

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """None that this process could reach: each rank has its own."""
        return ()

    @property
    def team(self) -> RankTeam:
        """The processes, for whoever watches them."""
        return self._team

    def submit(self, plan: ForwardPlan) -> None:
        """Hands a step to all ranks. Raises: `RankLost`."""
        assert self._num_in_flight < self._info.max_in_flight, "too many plans in flight"
        self._num_in_flight += 1
        drawn, self._drawn = tuple(self._drawn), []
        self._tell(RunStep(plan, drawn))

    def collect(self) -> ForwardResult:
        """The oldest step's result. Raises: `RankLost`."""
        if not self._results:
            self._is_sound = False
            _, word = self._team.receive(self._step_timeout_s)
            self._is_sound = True
            assert isinstance(word, RankStepped), "only results are awaited"
            self._results.append(word.result)
        result = self._results.popleft()
        self._num_in_flight -= 1
        self._drawn.append(strip_scores(result))
        return result

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """What all ranks' parts take, as `AdapterLoader` has it; steps wait meanwhile."""
        self._news.append(self._ask(MeasureAdapter(adapter)))
        wake()

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """Loads all ranks' parts, or none; steps wait meanwhile."""
        self._news.append(self._ask(LoadAdapter(adapter)))
        wake()

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        """What has become of them since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def drop_adapter(self, digest: bytes) -> None:
        """Frees it on all ranks, as `AdapterLoader` has it."""
        self._tell(DropAdapter(digest))

    def sleep(self) -> int:
        """Moves all ranks' weights to the host, as `Executor` has it."""
        return self._move(SleepRank())

    def wake(self) -> int:
        """Brings them back, as `Executor` has it."""
        return self._move(WakeRank())

    def close(self) -> None:
        """Ends the ranks: in order, or at once where one is lost and others may wait for it."""
        self._team.end(orderly=self._is_sound and not self._num_in_flight)

    def _tell(self, word: ToRank) -> None:
        """Tells all ranks; when that fails the team is not sound any more."""
        self._is_sound = False
        self._team.send_all(word, self._step_timeout_s)
        self._is_sound = True

    def _ask(self, word: MeasureAdapter | LoadAdapter) -> AdapterNews:
        """What all ranks have to say of an adapter; what only some have loaded is dropped.

        A rank's result of a step before may come between the answers.
        """
        self._tell(word)
        self._is_sound = False
        answers: dict[int, AdapterNews] = {}
        while len(answers) < self._info.num_tensor_ranks * self._info.num_stages:
            rank, said = self._team.receive(self._step_timeout_s)
            if isinstance(said, RankStepped):
                self._results.append(said.result)
            else:
                assert isinstance(said, RankAdapted), "only adapters are asked for"
                answers[rank] = said.news
        self._is_sound = True
        joined = _join_news(list(answers.values()))
        if not joined.is_loaded and any(news.is_loaded for news in answers.values()):
            for rank, news in answers.items():
                if news.is_loaded:
                    self._team.send(rank, DropAdapter(news.digest), self._step_timeout_s)
        return joined

    def _move(self, word: SleepRank | WakeRank) -> int:
        """The bytes that all ranks have moved."""
        assert not self._num_in_flight, "a step is under way"
        self._drawn.clear()  # nobody has a row that could use it
        self._news.clear()
        self._tell(word)
        self._is_sound = False
        words = self._team.receive_all(self._step_timeout_s)
        self._is_sound = True
        return sum(word.num_bytes for word in words if isinstance(word, RankMoved))


def create_parallel_executor(
    settings: WorkerSettings,
    network: CausalNetwork,
    shape: ParallelShape,
    around: RankSurroundings,
) -> ParallelExecutor:
    """The model of `settings`, whose network is `network`, loaded by as many ranks as `shape` says.

    Memory and threads in `settings` are those of the whole model. Raises: `CheckpointError` where
    the model does not divide so, or a rank refuses it; `RankLost` when a rank does not come up.
    """
    places = [RankPlace(shape, rank) for rank in range(shape.num_ranks)]
    for place in places:
        network.share(place, ALONE)  # refuses before anything is started
    guard = WeightGuard(settings.model_dir, settings.check_weights)
    team = RankTeam([describe_rank(settings, place, around) for place in places])
    try:
        joined = team.receive_all(_START_S + around.join_timeout_s)
        assert all(isinstance(word, RankJoined) for word in joined)
        revision = guard.compute_revision()
        infos = [word.info for word in team.receive_all(None) if isinstance(word, RankReady)]
    except BaseException:
        team.end(orderly=False)
        raise
    guard.note_sound()
    if around.on_lost is not None:
        team.watch(around.on_lost)
    for place, info in zip(places, infos, strict=True):
        structlog.get_logger().info(
            "a rank of the model is ready",
            rank=place.rank,
            stage=place.stage,
            weights_bytes=info.weights_bytes,
            kv_bytes=info.kv_bytes,
        )
    return ParallelExecutor(team, join_infos(infos, shape, revision), around.step_timeout_s)


def describe_rank(
    settings: WorkerSettings, place: RankPlace, around: RankSurroundings
) -> StartRank:
    """What a rank is told at the start: an even part of the model's memory and threads."""
    num_ranks = place.shape.num_ranks
    own = change(
        settings,
        kv_bytes=None if settings.kv_bytes is None else settings.kv_bytes // num_ranks,
        swap_bytes=settings.swap_bytes // num_ranks,
        adapter_bytes=(
            None if settings.adapter_bytes is None else settings.adapter_bytes // num_ranks
        ),
        num_threads=_share(settings.num_threads, num_ranks),
        num_default_threads=_share(settings.num_default_threads, num_ranks),
        device=f"cuda:{place.rank}" if settings.device == "cuda" else settings.device,
    )
    return StartRank(
        settings=own,
        place=place,
        rendezvous=around.rendezvous,
        join_timeout_s=around.join_timeout_s,
        step_timeout_s=around.step_timeout_s,
        log=around.log,
        log_context=around.log_context,
        parent_pid=read_own_id(),
    )


def _share(count: int | None, num_ranks: int) -> int | None:
    """An even part of some threads, at least one."""
    return None if count is None else max(1, count // num_ranks)


def join_infos(infos: Sequence[ExecutorInfo], shape: ParallelShape, revision: str) -> ExecutorInfo:
    """What all ranks together are: blocks count once, and take what they take on all of them."""
    first = infos[0]
    assert len({info.num_blocks for info in infos}) == 1, "ranks have not agreed on blocks"
    stages = infos[:: shape.tensor]
    groups = [
        KvGroup(
            group.kind,
            sum(info.kv_groups[place].num_layers for info in stages),
            sum(info.kv_groups[place].block_bytes for info in infos),
            group.window,
            group.num_blocks,
            group.num_host_blocks,
        )
        for place, group in enumerate(first.kv_groups)
    ]
    return replace(
        first,
        kv_groups=tuple(groups),
        model_revision=revision,
        max_in_flight=shape.pipeline,
        weights_bytes=sum(info.weights_bytes for info in infos),
        kv_bytes=sum(info.kv_bytes for info in infos),
        adapter_bytes=sum(info.adapter_bytes for info in infos),
        num_tensor_ranks=shape.tensor,
        num_stages=shape.pipeline,
    )


def _join_news(news: Sequence[AdapterNews]) -> AdapterNews:
    """What all ranks together have to say: what one cannot have, none has."""
    for one in news:
        if one.refused or one.failed:
            return one
    return change(news[0], num_bytes=sum(one.num_bytes for one in news))


def strip_scores(result: ForwardResult) -> ForwardResult:
    """A result without the scores, which ranks do not need."""
    sampled = tuple([change(tokens, scores=()) for tokens in result.sampled])
    return ForwardResult(result.step, sampled)
