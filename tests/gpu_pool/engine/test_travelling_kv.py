"""KV that comes from elsewhere is as good as computed; what fails to come is computed."""

import itertools
from dataclasses import replace
from random import Random

import pytest

from contracts.grant import RetentionClass
from contracts.ids import AccountId
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.export import ChunkId, ExportOrder
from gpu_pool.kv.host_run import Prefix
from gpu_pool.plan import (
    NO_TOKEN,
    ForwardResult,
    KvGroup,
    KvGroupKind,
    SampledTokens,
    SequenceId,
)
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.store_double import Sink, StoreDouble

FULL = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=40)
SLIDING = KvGroup(KvGroupKind.SLIDING_WINDOW, 1, 1, 6, num_host_blocks=40)
CHUNKED = KvGroup(KvGroupKind.CHUNKED, 1, 1, 8, num_host_blocks=40)
MIXES = {"full": (FULL,), "full and sliding": (FULL, SLIDING), "all": (CHUNKED, FULL, SLIDING)}
PROMPT = list(range(1, 23))
"""Five full blocks and a piece."""


class Rig(EngineRig):
    """An engine with a store beside it."""

    store: StoreDouble

    def __init__(
        self,
        groups: tuple[KvGroup, ...] = (FULL,),
        *,
        seed: int = 1,
        num_blocks: int = 64,
        max_in_flight: int = 1,
        order: ExportOrder | None = None,
        failure_rate: float = 0.0,
    ) -> None:
        def create(executor: ExecutorDouble) -> object:
            self.store = StoreDouble(executor, Random(seed), failure_rate=failure_rate)
            self.store.order = order or ExportOrder(None)
            return self.store.to_carriers()

        info = create_double_info(
            kv_groups=groups, num_blocks=num_blocks, max_in_flight=max_in_flight
        )
        super().__init__(SchedulerSettings(max_batch_tokens=64), info, create_carriers=create)

    def count_travelling(self, place: int) -> int:
        """Host blocks that land, leave or are in quarantine."""
        return self.scheduler.books.passage.count_held(place)

    def settle(self, max_steps: int = 2000) -> None:
        """Steps until every sequence is over and nothing lands or leaves."""
        for _ in range(max_steps):
            self.now_ms += 1
            self.store.now_ms = self.now_ms
            self.step()
            load = self.scheduler.load
            is_idle = not (load.num_running or load.num_waiting or self.scheduler.has_work)
            if is_idle and not (self.store.landings or self.store.leased):
                return
        raise AssertionError("the engine does not come to an end")


def take_content(donor: Rig, receiver: Rig) -> None:
    receiver.store.content.update(donor.store.content)


def fill_store(groups: tuple[KvGroup, ...], prompt: list[int]) -> Rig:
    """A rig whose store has all blocks of a prompt."""
    rig = Rig(groups, order=ExportOrder(0, is_firm=True))
    rig.add(create_request(1, prompt, max_tokens=1))
    rig.settle()
    return rig


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("num_cached", [0, 9])
def test_a_sequence_starts_with_what_has_landed(name: str, num_cached: int) -> None:
    donor = fill_store(MIXES[name], PROMPT)
    assert donor.store.ends == {1: True}
    rig = Rig(MIXES[name])
    if num_cached:
        rig.add(create_request(7, PROMPT[:num_cached], max_tokens=1))
        rig.settle()
        rig.store.content.clear()
    take_content(donor, rig)
    request = create_request(8, PROMPT, max_tokens=6)
    outcome = rig.add(request)
    rig.settle()
    assert outcome.num_cached_tokens == [20]
    assert outcome.token_ids == rig.predict(request)
    if num_cached and name == "full":  # what the cache has is not brought
        assert sum(len(plan.moved_in) for plan in rig.plans) == 3


def test_what_has_landed_is_found_again_by_the_next_one() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    rig.add(create_request(1, PROMPT, max_tokens=1))
    rig.settle()
    rig.store.content.clear()
    outcome = rig.add(create_request(2, PROMPT, max_tokens=1))
    rig.settle()
    assert outcome.num_cached_tokens == [20]


def test_what_fails_to_land_is_computed() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig(failure_rate=1.0)
    take_content(donor, rig)
    request = create_request(1, PROMPT)
    outcome = rig.add(request)
    rig.settle()
    assert (outcome.num_cached_tokens, outcome.token_ids) == ([0], rig.predict(request))


def test_what_comes_too_late_is_computed_and_its_blocks_stay_in_quarantine() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    rig.store.random = Never()
    request = create_request(1, PROMPT)
    outcome = rig.add(request)
    rig.step()
    assert not rig.scheduler.has_work
    assert rig.scheduler.next_deadline_ms == rig.store.patience_ms
    rig.now_ms = rig.store.patience_ms
    rig.step()
    rig.run()
    assert outcome.token_ids == rig.predict(request)
    assert rig.count_travelling(0) == 5
    rig.store.random = Random(1)
    rig.settle()
    assert rig.count_travelling(0) == 0


class Never(Random):
    """Whatever may happen does not."""

    def random(self) -> float:
        return 0.6


def test_an_aborted_sequence_leaves_its_blocks_in_quarantine() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    rig.store.random = Never()
    rig.add(create_request(1, PROMPT))
    rig.abort(1)
    assert rig.count_travelling(0) == 5
    rig.store.random = Random(1)
    rig.settle()
    assert rig.count_travelling(0) == 0


def test_a_sequence_that_waits_for_its_kv_holds_up_nobody() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    rig.store.random = Never()
    for number in range(1, 6):
        rig.add(create_request(number, PROMPT))
    others = [create_request(number, [number] * 6) for number in range(11, 30)]
    outcomes = [rig.add(request) for request in others]
    rig.run()
    predictions = [rig.predict(request) for request in others]
    assert [outcome.token_ids for outcome in outcomes] == predictions


def test_private_kv_neither_leaves_nor_lands() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    num_known = len(rig.store.content)
    outcome = rig.add(create_request(1, PROMPT, retention=RetentionClass.NONE))
    rig.settle()
    assert outcome.num_cached_tokens == [0]
    assert len(rig.store.content) == num_known
    assert rig.store.ends == {1: False}
    control = rig.add(create_request(2, PROMPT))
    rig.settle()
    assert control.num_cached_tokens == [20]


def test_an_account_lands_nothing_of_another() -> None:
    donor = fill_store((FULL,), PROMPT)
    rig = Rig()
    take_content(donor, rig)
    outcome = rig.add(create_request(1, PROMPT, salt=b"B"))
    rig.settle()
    assert outcome.num_cached_tokens == [0]


def test_an_order_without_room_is_refused_at_once() -> None:
    """Half of all is an account's: four blocks of nine, and these are five."""
    small = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=9)
    rig = Rig((small,), order=ExportOrder(0, is_firm=True))
    outcome = rig.add(create_request(1, PROMPT))
    assert outcome.error_codes == ["pool_saturated"]
    assert rig.store.ends == {1: False}
    fits = rig.add(create_request(2, PROMPT[:17], max_tokens=1))
    rig.settle()
    assert len(fits.token_ids) == 1


@pytest.mark.parametrize("num_last", [3, 18])
@pytest.mark.parametrize("is_firm", [True, False])
def test_what_turns_out_not_to_be_numbers_is_disowned_and_its_last_blocks_do_not_leave(
    is_firm: bool, num_last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the step before have left; who was to have them all hears that he has not, even
    where no block is missing.
    """
    rig = Rig(order=ExportOrder(0 if is_firm else None, is_firm=is_firm))
    collect = rig.executor.collect

    def garble() -> ForwardResult:
        result = collect()
        sampled = (SampledTokens(one.sequence_id, (NO_TOKEN,)) for one in result.sampled)
        return replace(result, sampled=tuple(sampled))

    monkeypatch.setattr(rig.executor, "collect", garble)
    outcome = rig.add(create_request(1, range(1, 65 + num_last), max_tokens=1))
    rig.settle()
    assert outcome.error_codes == ["internal_error"]
    assert len(rig.store.content) == 16, "of the second step nothing has left"
    (void,) = rig.store.voids
    assert {key for _, key in rig.store.content} <= set(void.keys)
    assert (len(void.keys), rig.store.ends) == (16 + num_last // 4, {1: False})


class Holding(Random):
    """Nothing is given back."""

    def random(self) -> float:
        return 0.4


class NeverDone(Sink):
    """Gives no copy back: a drive that hangs."""

    def poll(self) -> list[ChunkId]:
        return []


@pytest.mark.parametrize("name", ["full", "full and sliding"])
def test_accounts_that_take_all_they_get_leave_others_some(name: str) -> None:
    """Nobody fetches any of it. Of 40 host blocks four prompts of five each are the first
    account's; the quarter that is left of three is for accounts that hold no more than they leave,
    and nothing that is kept has the last quarter: a sequence that gives way finds room there. What
    is given back is everybody's again.
    """
    rig = Rig(MIXES[name], num_blocks=256, order=ExportOrder(0, is_firm=True))
    rig.store.random = Holding()
    numbers = itertools.count(1)

    def ask(account: str, num_blocks: int = 5) -> list[str]:
        request = create_request(
            number := next(numbers),
            [*PROMPT[: 4 * num_blocks], number, number],
            max_tokens=1,
            account_id=AccountId(account * 32),
        )
        outcome = rig.add(request)
        rig.run()
        return outcome.error_codes

    refused = ["pool_saturated"]
    assert [ask("a") for _ in range(5)] == [[]] * 4 + [refused]
    assert [ask("b") for _ in range(2)] == [[], refused]
    assert ask("c") == refused  # the control: it would hold more than it leaves
    assert [ask("c", 2), ask("c", 2)] == [[], refused]
    assert [ask("d", 1), ask("e", 1)] == [[], []]
    pool = rig.scheduler.books.passage.exports._groups[0].host
    assert pool.num_free >= FULL.num_host_blocks // 4
    rig.store.random = Random(1)
    rig.settle()
    assert rig.count_travelling(0) == 0
    exports = rig.scheduler.books.passage.exports
    assert not exports._num_ordered
    assert not any(exports._num_firm)
    assert [ask(account) for account in "aabb"] == [[]] * 4


def test_copies_that_nobody_has_ordered_leave_half_of_the_room_to_those_who_order() -> None:
    orders = {1: ExportOrder(None), 2: ExportOrder(5, is_firm=True)}

    class ByRequest(NeverDone):
        def find(self, sequence_id: SequenceId, prefix: Prefix) -> ExportOrder | None:
            return orders[sequence_id]

    def create(executor: ExecutorDouble) -> Carriers:
        return Carriers((), (ByRequest(StoreDouble(executor, Random(1))),))

    info = create_double_info(kv_groups=(FULL,), num_blocks=128)
    rig = EngineRig(SchedulerSettings(max_batch_tokens=512), info, create_carriers=create)
    rig.add(create_request(1, range(1, 200), max_tokens=1, account_id=AccountId("b" * 32)))
    rig.run()
    assert rig.scheduler.books.passage.count_held(0) == FULL.num_host_blocks // 2
    outcome = rig.add(create_request(2, PROMPT, max_tokens=1))
    rig.run()
    assert (outcome.error_codes, len(outcome.token_ids)) == ([], 1)


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("is_firm", [False, True])
def test_in_a_storm_every_answer_is_right_and_nothing_leaks(
    name: str, max_in_flight: int, is_firm: bool
) -> None:
    random = Random(f"{name} {max_in_flight}")
    rig = Rig(
        MIXES[name],
        seed=random.randrange(2**32),
        num_blocks=24,
        max_in_flight=max_in_flight,
        order=ExportOrder(0 if is_firm else None, is_firm=is_firm),
        failure_rate=0.2,
    )
    requests: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for number in range(1, 250):
        family = random.randrange(4)
        shared = [family * 100 + n for n in range(random.randrange(24))]
        request = create_request(
            number,
            [*shared, 900 + number % 50],
            max_tokens=random.randrange(1, 12),
            account_id=AccountId(f"{family % 2:x}" * 32),
            salt=bytes([family % 2 + 1]),
            reject_if_busy=random.random() < 0.1,
            retention=RetentionClass.NONE if random.random() < 0.1 else RetentionClass.STANDARD,
        )
        requests[number] = rig.predict(request)
        rig.add(request)
        if random.random() < 0.2:
            victim = random.randrange(max(1, number - 6), number + 1)
            aborted.add(victim)
            rig.abort(victim)
        for _ in range(random.randrange(4)):
            rig.now_ms += 1
            rig.store.now_ms = rig.now_ms
            rig.step()
    rig.settle()
    assert rig.store.num_landed > 10
    for number, predicted in requests.items():
        outcome = rig.outcomes[number]
        whole = not (number in aborted or outcome.error_codes)
        assert outcome.token_ids == (predicted if whole else predicted[: len(outcome.token_ids)])
    for place in range(len(MIXES[name])):
        assert rig.count_travelling(place) == 0
    assert not rig.scheduler.books.passage.exports._num_ordered
