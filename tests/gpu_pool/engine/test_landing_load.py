"""How busy a core says that it is while blocks of sequences come from elsewhere, or are there."""

from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Offer
from gpu_pool.plan import KvGroup, KvGroupKind, SequenceId
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request

GROUP = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=40)
PROMPT = list(range(1, 23))
"""Five full blocks and a piece."""
AWAITED, OTHER, PLAIN = SequenceId(1), SequenceId(2), SequenceId(3)


class Promises:
    """Offers all blocks to two sequences, and brings nothing before the test says so."""

    def __init__(self) -> None:
        self.ends: list[LandingEnd] = []

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        return None if sequence_id == PLAIN else Offer(len(prefix.keys), 1_000_000)

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None: ...
    def decline(self, sequence_id: SequenceId) -> None: ...

    def cancel(self, sequence_id: SequenceId) -> int:
        return 0

    def poll(self) -> list[LandingEnd]:
        ends, self.ends = self.ends, []
        return ends


def read(rig: EngineRig) -> tuple[int, int, int, int]:
    """Sequences that run, wait for room and whose blocks come; tokens of prompts to compute."""
    load = rig.scheduler.load
    return load.num_running, load.num_waiting, load.num_coming, load.num_queued_tokens


def test_what_comes_from_elsewhere_neither_runs_nor_waits_for_a_place_nor_is_to_be_computed() -> (
    None
):
    source = Promises()
    info = create_double_info(kv_groups=(GROUP,), num_blocks=64)
    settings = SchedulerSettings(max_batch_tokens=64, max_running=1)
    rig = EngineRig(settings, info, create_carriers=lambda _: Carriers((source,), ()))
    rig.add(create_request(AWAITED, PROMPT, max_tokens=2))
    rig.add(create_request(OTHER, PROMPT, max_tokens=2))
    assert read(rig) == (0, 0, 2, 0)
    rig.add(create_request(PLAIN, PROMPT, max_tokens=2))
    assert read(rig) == (0, 1, 2, len(PROMPT))  # the control
    rig.step()
    assert read(rig) == (1, 0, 2, 0)
    source.ends = [LandingEnd(AWAITED, has_landed=False)]
    rig.step()  # which the one that runs still takes part in
    assert read(rig) == (0, 1, 1, len(PROMPT))  # it is to be computed after all
    rig.abort(OTHER)
    assert read(rig) == (0, 1, 0, len(PROMPT))
    rig.run()
    assert read(rig) == (0, 0, 0, 0)


def test_what_is_in_the_cache_is_not_to_be_computed() -> None:
    info = create_double_info(kv_groups=(GROUP,), num_blocks=64)
    rig = EngineRig(SchedulerSettings(max_batch_tokens=64, max_running=1), info)
    rig.add(create_request(1, PROMPT, max_tokens=1))
    rig.run()
    rig.add(create_request(2, [99], max_tokens=4))
    rig.step()  # it has the only place
    num_cached = len(PROMPT) // info.block_size * info.block_size
    rig.add(create_request(3, PROMPT, max_tokens=1))
    assert read(rig) == (1, 1, 0, len(PROMPT) - num_cached)
    rig.add(create_request(4, PROMPT, max_tokens=1, salt=b"B"))  # the control: it has nothing
    assert read(rig) == (1, 2, 0, 2 * len(PROMPT) - num_cached)
    rig.abort(4)
    assert read(rig) == (1, 1, 0, len(PROMPT) - num_cached)
    rig.run()
    assert read(rig) == (0, 0, 0, 0)
