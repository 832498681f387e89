"""Masks are computed beside the steps: dear ones hold up their own answers and nobody else's."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import ClassVar

import msgspec
import pytest

from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.mask_desk import MaskDesk
from gpu_pool.engine.mask_lines import PROOF
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import ForwardResult, KvGroup, KvGroupKind, SampledTokens, SequenceId
from tests.gpu_pool.engine.engine_rig import EngineRig, Outcome, assert_no_leak, create_request
from tests.gpu_pool.engine.list_matcher import VOCAB_SIZE, Lists

MEAN, KIND = AccountId("b" * 32), AccountId("c" * 32)
LONG_S = 30.0


class Held(Lists):
    """Numbers above 500 have masks that take as long as the test likes."""

    let_go = threading.Event()
    num_begun: ClassVar[int] = 0

    def fill_mask(self) -> bytes:
        if self.next_number > 500:
            Held.num_begun += 1
            assert Held.let_go.wait(LONG_S)
        return super().fill_mask()


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """No thread is left waiting, whatever a test comes to."""
    Held.let_go.clear()
    Held.num_begun = 0
    yield
    Held.let_go.set()


def create_rig(
    num_mask_threads: int,
    create_matcher: Callable[[str], Lists] = Held,
    *,
    max_in_flight: int = 1,
    settings: SchedulerSettings | None = None,
) -> EngineRig:
    info = create_double_info(max_in_flight=max_in_flight, num_blocks=40)
    return EngineRig(settings, info, create_matcher, num_mask_threads=num_mask_threads)


def step_until(rig: EngineRig, is_so: Callable[[], bool]) -> None:
    """Steps until something is so; fails after long."""
    end_s = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < end_s, "it does not come to that"
        rig.step()


def is_over(outcome: Outcome) -> Callable[[], bool]:
    return lambda: bool(outcome.reasons)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_an_answer_without_its_mask_sits_steps_out_and_others_go_on(max_in_flight: int) -> None:
    rig = create_rig(2, max_in_flight=max_in_flight)
    dear = rig.add(create_request(1, [1, 2, 3], grammar="7 601 8", max_tokens=9, account_id=MEAN))
    plain_request = create_request(2, [4, 5, 6], max_tokens=60)
    plain = rig.add(plain_request)
    step_until(rig, is_over(plain))
    assert plain.token_ids == rig.predict(plain_request)
    assert (dear.token_ids, dear.reasons) == ([7], [])
    Held.let_go.set()
    rig.run()
    assert (dear.token_ids, dear.reasons) == ([7, 601, 8], [FinishReason.STOP])
    assert_no_leak(rig)


def test_computed_in_the_steps_the_same_mask_holds_up_everybody() -> None:
    rig = create_rig(0)
    rig.add(create_request(1, [1, 2, 3], grammar="7 601 8", max_tokens=9, account_id=MEAN))
    plain = rig.add(create_request(2, [4, 5, 6], max_tokens=60))
    thread = threading.Thread(target=rig.run)
    thread.start()
    end_s = time.monotonic() + LONG_S
    while not Held.num_begun and time.monotonic() < end_s:
        time.sleep(0.001)
    thread.join(0.1)
    num_tokens, is_held = len(plain.token_ids), thread.is_alive()
    Held.let_go.set()
    thread.join(LONG_S)
    assert (num_tokens, is_held) == (1, True)
    assert len(plain.token_ids) == 60


def test_the_last_thread_is_kept_from_whose_masks_are_under_way() -> None:
    rig = create_rig(2)
    for n in (1, 2, 3):
        rig.add(create_request(n, [n], grammar="601 602", max_tokens=9, account_id=MEAN))
    kind = rig.add(create_request(4, [4], grammar="5 6 7", max_tokens=9, account_id=KIND))
    step_until(rig, is_over(kind))
    assert kind.token_ids == [5, 6, 7]
    assert Held.num_begun == 1


def test_without_one_to_keep_they_stand_behind_each_other() -> None:
    rig = create_rig(1)
    rig.add(create_request(1, [1], grammar="601 602", max_tokens=9, account_id=MEAN))
    step_until(rig, lambda: Held.num_begun == 1)
    kind = rig.add(create_request(2, [2], grammar="5 6 7", max_tokens=9, account_id=KIND))
    for _ in range(20):
        rig.step()
    assert kind.token_ids == []


@pytest.mark.parametrize(
    ("account_id", "order"), [(KIND, [601, 5, 5, 602, 603]), (MEAN, [601, 602, 603, 5, 5])]
)
def test_whose_masks_took_least_time_is_next(account_id: AccountId, order: list[int]) -> None:
    computed: list[int] = []

    class Burning(Lists):
        def fill_mask(self) -> bytes:
            number = self.next_number
            computed.append(number)
            if number > 500:
                assert Held.let_go.wait(LONG_S)
                end_s = time.thread_time() + 0.003
                while time.thread_time() < end_s:
                    pass
            return super().fill_mask()

    rig = create_rig(1, Burning)
    for n in (1, 2, 3):
        rig.add(create_request(n, [n], grammar=f"60{n}", max_tokens=9, account_id=MEAN))
    step_until(rig, lambda: bool(computed))
    for n in (4, 5):
        rig.add(create_request(n, [n], grammar="5", max_tokens=9, account_id=account_id))
    Held.let_go.set()
    rig.run()
    assert computed == order


def test_prompts_are_computed_while_the_first_mask_is_not_there() -> None:
    rig = create_rig(2, settings=SchedulerSettings(max_running=4, max_batch_tokens=4))
    rig.add(create_request(1, range(1, 11), grammar="601 8", max_tokens=9, account_id=MEAN))
    for _ in range(8):
        rig.step()
    assert sum(work.num_tokens for plan in rig.plans for work in plan.scheduled) == 9
    Held.let_go.set()
    rig.run()
    assert rig.outcomes[1].token_ids == [601, 8]


def test_a_core_whose_answers_all_wait_waits_with_them() -> None:
    rig = create_rig(2)
    outcome = rig.add(create_request(1, [1, 2], grammar="601 602", max_tokens=9))
    assert [rig.step() is None for _ in range(4)] == [False, True, True, True]
    assert rig.scheduler.has_work
    Held.let_go.set()
    rig.run()
    assert outcome.token_ids == [601, 602]


@pytest.mark.parametrize("num_mask_threads", [0, 2])
def test_a_matcher_with_a_defect_ends_its_own_answer(num_mask_threads: int) -> None:
    class Broken(Lists):
        def fill_mask(self) -> bytes:
            if self._index == 1:
                raise BaseException("as a panic of the library would be")
            return super().fill_mask()

    rig = create_rig(num_mask_threads, Broken)
    broken = rig.add(create_request(1, [1], grammar="5 6", max_tokens=9))
    whole_request = create_request(2, [2], max_tokens=9)
    whole = rig.add(whole_request)
    rig.run()
    assert (broken.token_ids, broken.error_codes) == ([5], ["internal_error"])
    assert whole.token_ids == rig.predict(whole_request)
    assert_no_leak(rig)


def test_who_leaves_while_its_mask_is_computed_leaves_nothing_behind() -> None:
    rig = create_rig(2)
    rig.add(create_request(1, [1], grammar="601 602", max_tokens=9, account_id=MEAN))
    rig.add(create_request(2, [2], grammar="603 604", max_tokens=9, account_id=MEAN))
    step_until(rig, lambda: Held.num_begun == 1)
    rig.abort(1)
    rig.abort(2)
    del rig.outcomes[1]
    again = rig.add(create_request(1, [1], grammar="5 6", max_tokens=9, account_id=KIND))
    step_until(rig, is_over(again))
    assert again.token_ids == [5, 6]
    Held.let_go.set()
    rig.run()
    assert [again.token_ids, rig.outcomes[2].token_ids] == [[5, 6], []]
    assert rig.scheduler.books.masks.num_awaited == 0
    assert_no_leak(rig)


def test_what_waits_in_host_memory_stays_there_until_its_mask_is_known() -> None:
    """Blocks that are moved in come with the plan that computes with them, and not before."""
    group = KvGroup(KvGroupKind.FULL, 1, 1, num_host_blocks=12)
    info = create_double_info(num_blocks=40, kv_groups=(group,))
    settings = SchedulerSettings(prefix_caching=False)
    rig = EngineRig(settings, info, Held, num_mask_threads=2)
    bound = rig.add(create_request(1, range(1, 9), grammar="7 601 8", max_tokens=9))
    step_until(rig, lambda: Held.num_begun == 1)
    books = rig.scheduler.books
    sequence = books.find(SequenceId(1))
    assert sequence is not None
    books.batch.preempt(sequence)
    assert sequence.is_kept_in_host
    plain = rig.add(create_request(2, [4, 5, 6], max_tokens=5, account_id=KIND))
    step_until(rig, is_over(plain))
    assert not sequence.is_running
    assert rig.scheduler._planner.awaits_prefix(sequence)
    Held.let_go.set()
    rig.run()
    assert bound.token_ids == [7, 601, 8]
    assert any(plan.moved_in for plan in rig.plans)
    assert_no_leak(rig)


def test_tokens_are_taken_in_beside_the_steps_as_well() -> None:
    class Slow(Lists):
        """Takes a token in when its lexer is free, which another answer may share."""

        def accept(self, token_id: int) -> bool:
            assert Held.let_go.wait(LONG_S)
            return super().accept(token_id)

    rig = create_rig(2, Slow)
    bound = rig.add(create_request(1, [1, 2, 3], grammar="7 8", max_tokens=9, account_id=MEAN))
    plain = rig.add(create_request(2, [4, 5, 6], max_tokens=60))
    thread = threading.Thread(target=step_until, args=(rig, is_over(plain)))
    thread.start()
    thread.join(LONG_S / 3)
    is_over_in_time = bool(plain.reasons)
    Held.let_go.set()
    thread.join(LONG_S)
    rig.run()
    assert is_over_in_time
    assert (bound.token_ids, bound.reasons) == ([7, 8], [FinishReason.STOP])


def test_nobody_else_touches_a_matcher_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Jealous(Held):
        """Fails where the real one would: it is lent to one thread at a time."""

        is_at_work = False

        def fill_mask(self) -> bytes:
            self.is_at_work = True
            mask = super().fill_mask()
            self.is_at_work = False
            return mask

        @property
        def is_finished(self) -> bool:
            assert not self.is_at_work, "already borrowed"
            return super().is_finished

    ask = MaskDesk.ask

    def ask_and_wait(desk: MaskDesk, sequence: Sequence) -> None:
        ask(desk, sequence)
        end_s = time.monotonic() + LONG_S
        while not Held.num_begun and time.monotonic() < end_s:
            time.sleep(0.001)

    monkeypatch.setattr(MaskDesk, "ask", ask_and_wait)
    rig = create_rig(2, Jealous)
    outcome = rig.add(create_request(1, [1], grammar="601 5", max_tokens=9))
    Held.let_go.set()
    rig.run()
    assert outcome.token_ids == [601, 5]


def test_of_who_left_while_its_mask_was_computed_nothing_is_kept() -> None:
    matchers: list[weakref.ref[Held]] = []

    class Watched(Held):
        def copy(self) -> Lists:
            one = super().copy()
            assert isinstance(one, Watched)
            matchers.append(weakref.ref(one))
            return one

    rig = create_rig(2, Watched)
    rig.add(create_request(1, [1], grammar="601 602", max_tokens=9))
    step_until(rig, lambda: Held.num_begun == 1)
    rig.abort(1)
    Held.let_go.set()
    end_s = time.monotonic() + LONG_S
    while matchers[0]() is not None:  # its prompt would stay as well
        assert time.monotonic() < end_s, "it is kept"
        gc.collect()
        time.sleep(0.001)
    assert not rig.scheduler.has_work


def test_a_token_that_the_mask_forbids_is_told_to_nobody() -> None:
    rig = create_rig(0)
    outcome = rig.add(create_request(1, [1, 2], grammar="5 6", max_tokens=9))
    plan = rig.scheduler.schedule(0)
    assert plan is not None
    sampled = SampledTokens(plan.scheduled[0].sequence_id, (6,))
    rig.scheduler.update(ForwardResult(plan.step, (sampled,)))
    rig.note()
    assert (outcome.token_ids, outcome.error_codes) == ([], ["internal_error"])


@pytest.mark.parametrize("num_mask_threads", [0, 2])
@pytest.mark.parametrize(
    ("so_far", "news", "reasons", "codes"),
    [
        ((7,), [8, 9], [FinishReason.STOP], []),
        ((7, 8, 9), [], [FinishReason.STOP], []),
        ((8,), [], [None], ["internal_error"]),
    ],
)
def test_a_resumed_answer_goes_on_behind_what_there_is_of_it(
    num_mask_threads: int,
    so_far: tuple[int, ...],
    news: list[int],
    reasons: list[FinishReason | None],
    codes: list[str],
) -> None:
    rig = create_rig(num_mask_threads)
    request = create_request(1, [1, 2, *so_far], grammar="7 8 9", max_tokens=9)
    outcome = rig.add(msgspec.structs.replace(request, num_generated_tokens=len(so_far)))
    rig.run()
    assert (outcome.token_ids, outcome.reasons, outcome.error_codes) == (news, reasons, codes)
    assert len(outcome.num_cached_tokens) == 1 or codes
    assert_no_leak(rig)


def test_a_desk_without_anybody_gives_nothing() -> None:
    assert MaskDesk(2).gather(1.0, 0) == []


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_slow_and_quick_masks_loses_no_answer(seed: int, max_in_flight: int) -> None:
    random = Random(seed)

    class Slow(Lists):
        def fill_mask(self) -> bytes:
            time.sleep(random.choice((0, 0, 0, 0.0002, 0.003)))
            return super().fill_mask()

    settings = SchedulerSettings(max_running=6, max_batch_tokens=12)
    rig = create_rig(3, Slow, max_in_flight=max_in_flight, settings=settings)
    spelled: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for n in range(1, 80):
        account = AccountId(random.choice("abcd") * 32)
        numbers = [random.randrange(1, VOCAB_SIZE) for _ in range(random.randrange(1, 9))]
        prompt = [random.randrange(1, 20) for _ in range(random.randrange(1, 12))]
        is_bound = random.random() < 0.8
        grammar = " ".join(map(str, numbers)) if is_bound else None
        request = create_request(n, prompt, grammar=grammar, max_tokens=9, account_id=account)
        rig.add(request)
        spelled[n] = numbers if is_bound else rig.predict(request)
        for _ in range(random.randrange(4)):
            rig.step()
        if random.random() < 0.2:
            aborted.add(n)
            rig.abort(n)
    rig.run()
    for n, numbers in spelled.items():
        told = rig.outcomes[n].token_ids
        assert told == numbers or (n in aborted and told == numbers[: len(told)])
    assert_no_leak(rig)


def test_the_core_computes_what_is_quick_where_threads_have_no_time() -> None:
    """The only one is held by another account, behind which those wait who are not known."""
    rig = create_rig(1)
    known = " ".join(["5"] * PROOF)
    step_until(rig, is_over(rig.add(create_request(1, [1], grammar=known, max_tokens=PROOF))))
    rig.add(create_request(2, [2], grammar="601 602", max_tokens=9, account_id=MEAN))
    step_until(rig, lambda: Held.num_begun == 1)
    quick = rig.add(create_request(3, [3], grammar="5 6 7", max_tokens=9))
    new = rig.add(create_request(4, [4], grammar="5 6 7", max_tokens=9, account_id=KIND))
    step_until(rig, is_over(quick))
    for _ in range(20):
        rig.step()
    assert (quick.token_ids, new.token_ids) == ([5, 6, 7], [])
