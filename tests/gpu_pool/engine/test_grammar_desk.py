"""Schemas that take long to prepare: steps go on, accounts take turns, memory has an end."""

import threading
from collections.abc import Callable

import pytest

from contracts.errors import ServiceError, UnsupportedFeature
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine import grammar_desk
from gpu_pool.engine.matcher_maker import InlineMaker, Made, MatcherMaker, ThreadMaker
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import CreateMatcher
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import NEVER_MS, EngineRig, create_request
from tests.gpu_pool.engine.test_token_matcher import Lists

GREEDY, MODEST = AccountId("a" * 32), AccountId("b" * 32)


class SlowMaker:
    """Makes a matcher when it is told to."""

    def __init__(self, create_matcher: CreateMatcher = Lists) -> None:
        self._inline = InlineMaker(create_matcher)
        self.is_over = True
        self.begun: list[str] = []

    def prepare(self) -> None:
        pass

    def begin(self, grammar: str) -> None:
        assert self.is_over
        self.is_over = False
        self.begun.append(grammar)
        self._inline.begin(grammar)

    def take(self) -> Made | None:
        made = self._inline.take() if self.is_over else None
        return made and Made(made.outcome, 1000 * len(self.begun[-1]))


def create_rig(maker: MatcherMaker, settings: SchedulerSettings | None = None) -> EngineRig:
    rig = EngineRig(settings, create_matcher=Lists)
    rig.scheduler._desk._maker = maker
    return rig


def go_on(rig: EngineRig) -> None:
    """What a core does that is woken."""
    rig.step()
    rig.run()


def ask(
    sequence_id: int, grammar: str | None, account: AccountId = GREEDY, **more: int
) -> AddSequence:
    fields = {"max_tokens": 3, "deadline_ms": NEVER_MS} | more
    return create_request(sequence_id, [1, 2, 3], grammar=grammar, account_id=account, **fields)


def test_steps_go_on_while_a_grammar_is_made() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    bound = rig.add(ask(1, "5 6 7"))
    free = rig.add(ask(2, None, MODEST))
    assert rig.scheduler.num_sequences == 2
    assert rig.scheduler.load.num_coming == 1
    rig.run()
    assert free.reasons == [FinishReason.LENGTH]
    assert (bound.reasons, bound.token_ids) == ([], [])
    assert not rig.scheduler.has_work
    maker.is_over = True
    go_on(rig)
    assert bound.token_ids == [5, 6, 7]
    assert rig.scheduler.num_sequences == rig.scheduler.load.num_coming == 0


def test_made_in_the_loop_it_would_hold_them_up() -> None:
    ends: list[str] = []

    def create(grammar: str) -> Lists:
        ends.append("made")
        return Lists(grammar)

    rig = create_rig(InlineMaker(create))
    rig.add(ask(1, "5 6 7"))
    assert ends == ["made"]  # before anything was computed


def test_accounts_take_turns_by_the_time_that_their_grammars_took() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    for number in range(1, 21):
        rig.add(ask(number, f"{number} " * 50))
    for number in range(21, 24):
        rig.add(ask(number, str(number), MODEST))
    for _ in range(30):
        maker.is_over = True
        go_on(rig)
    order = [int(grammar.split()[0]) for grammar in maker.begun]
    assert len(order) == 23
    assert all(order.index(number) <= 4 for number in (21, 22, 23))
    assert sorted(order) == list(range(1, 24))


def test_equal_grammars_of_one_account_are_made_once_and_of_two_twice() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    outcomes = [rig.add(ask(1, "5 6 7")), rig.add(ask(2, "5 6 7"))]
    maker.is_over = True
    go_on(rig)
    outcomes.append(rig.add(ask(3, "5 6 7")))  # nobody needs it just now
    rig.run()
    assert maker.begun == ["5 6 7"]
    outcomes.append(rig.add(ask(4, "5 6 7", MODEST)))
    assert maker.begun == ["5 6 7", "5 6 7"]
    maker.is_over = True
    go_on(rig)
    assert [outcome.token_ids for outcome in outcomes] == [[5, 6, 7]] * 4


@pytest.mark.parametrize("is_late", [False, True])
def test_who_leaves_or_is_late_waits_no_more(is_late: bool) -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    gone = rig.add(ask(1, "5 6 7", deadline_ms=100))
    left = rig.add(ask(2, "5 6 7"))
    if is_late:
        assert rig.scheduler.next_deadline_ms == 100
        rig.now_ms = 100
        go_on(rig)
        assert gone.error_codes == ["deadline_exceeded"]
    else:
        rig.abort(1)
        assert gone.reasons == [FinishReason.ABORTED]
    maker.is_over = True
    go_on(rig)
    assert left.token_ids == [5, 6, 7]
    rig.abort(1)
    assert len(gone.reasons) == 1


def test_an_id_that_is_used_twice_gets_no_answer_of_either() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    twice = rig.add(ask(1, "5 6 7"))
    rig.add(ask(1, "8"))
    assert twice.error_codes == ["internal_error"]
    maker.is_over = True
    go_on(rig)
    assert twice.token_ids == []


def test_all_hear_of_the_end_of_a_core() -> None:
    rig = create_rig(SlowMaker())
    waiting = rig.add(ask(1, "5 6 7"))
    rig.scheduler.fail_all(ServiceError("It is over."))
    rig.note()
    assert len(waiting.error_codes) == 1
    assert rig.scheduler.num_sequences == 0


def test_a_refusal_reaches_all_that_wait_for_it_and_is_not_kept() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    refused = [rig.add(ask(1, "(")), rig.add(ask(2, "("))]
    maker.is_over = True
    go_on(rig)
    assert [one.error_codes for one in refused] == [["invalid_request"]] * 2
    rig.add(ask(3, "("))
    assert maker.begun == ["(", "("]


def test_what_waits_has_an_end_and_more_so_for_one_account() -> None:
    settings = SchedulerSettings(max_running=1, max_waiting=3, max_account_waiting=2)
    rig = create_rig(SlowMaker(), settings)
    outcomes = [rig.add(ask(number, f"{number}")) for number in range(1, 5)]
    outcomes += [rig.add(ask(number, f"{number}", MODEST)) for number in range(5, 7)]
    codes = [outcome.error_codes for outcome in outcomes]
    assert codes == [[], [], [], ["pool_saturated"], [], ["pool_saturated"]]


def test_what_matchers_take_has_an_end_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_desk, "MAX_CHARS", 16)
    monkeypatch.setattr(grammar_desk, "MAX_ACCOUNT_CHARS", 12)
    monkeypatch.setattr(grammar_desk, "MAX_IDLE_CHARS", 5)
    monkeypatch.setattr(grammar_desk, "MATCHER_CHARS", 0)
    rig = create_rig(InlineMaker(Lists))
    first, same = rig.add(ask(1, "5 6 7 8")), rig.add(ask(2, "5 6 7 8"))
    assert rig.add(ask(3, "9 6 7 8")).error_codes == ["pool_saturated"]
    assert rig.add(ask(4, "9 6 7", MODEST)).error_codes == []
    assert rig.add(ask(5, "9 6 8", MODEST)).error_codes == ["pool_saturated"]
    rig.run()
    assert first.token_ids == same.token_ids == [5, 6, 7]
    assert list(rig.scheduler._desk._kept) == [(MODEST, "9 6 7")]  # the other is too much to keep
    assert rig.add(ask(6, "9 6 7 8")).error_codes == []
    rig.run()


def test_small_grammars_take_room_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_desk, "MAX_IDLE_CHARS", 3 * grammar_desk.MATCHER_CHARS)
    rig = create_rig(InlineMaker(Lists))
    for number in range(1, 21):
        rig.add(ask(number, str(number)))
        rig.run()
    assert list(rig.scheduler._desk._kept) == [(GREEDY, "19"), (GREEDY, "20")]


@pytest.mark.parametrize(("shared_tokens", "num_made"), [(30, 1), (7, 5), (2, 10)])
def test_so_many_tokens_of_answers_share_a_matcher(
    shared_tokens: int, num_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_desk, "SHARED_TOKENS", shared_tokens)
    maker = SlowMaker()
    rig = create_rig(maker)
    outcomes = [rig.add(ask(one, "5 6 7")) for one in range(1, 11)]
    desk = rig.scheduler._desk
    assert desk._num_chars[GREEDY] <= num_made * (grammar_desk.MATCHER_CHARS + 5)
    while len(desk):
        maker.is_over = True
        go_on(rig)
        desk.check({sequence.sequence_id for sequence in rig.scheduler.books})
    assert [outcome.token_ids for outcome in outcomes] == [[5, 6, 7]] * 10
    assert len(maker.begun) == num_made
    assert not desk._num_chars


def test_who_finds_a_matcher_does_not_wait_for_others() -> None:
    maker = SlowMaker()
    rig = create_rig(maker)
    rig.add(ask(1, "5 6 7"))
    maker.is_over = True
    go_on(rig)
    rig.add(ask(2, "7 8", MODEST))  # is being made for a while
    found = rig.add(ask(3, "5 6 7"))
    rig.run()
    assert found.token_ids == [5, 6, 7]
    assert len(rig.scheduler._desk) == 1


@pytest.mark.parametrize("is_bound", [True, False])
def test_prompts_that_wait_for_matchers_have_an_end(is_bound: bool) -> None:
    settings = SchedulerSettings(max_waiting_tokens=10, max_account_waiting_tokens=7)
    rig = create_rig(SlowMaker(), settings if is_bound else None)
    outcomes = [rig.add(ask(number, f"{number}")) for number in (1, 2, 3)]
    outcomes += [rig.add(ask(number, f"{number}", MODEST)) for number in (4, 5)]
    codes = [outcome.error_codes for outcome in outcomes]
    refused = ["pool_saturated"] if is_bound else []
    assert codes == [[], [], refused, [], refused]
    for number in range(1, 6):
        rig.abort(number)
    assert not rig.scheduler._desk._num_waiting_tokens


def test_a_thread_makes_matchers_and_wakes_the_loop() -> None:
    may_go, woken, threads = threading.Event(), threading.Event(), set[int]()

    def create(grammar: str) -> Lists:
        threads.add(threading.get_ident())
        assert may_go.wait(timeout=60)
        return Lists(grammar)

    rig = create_rig(ThreadMaker(lambda: create, woken.set, num_mask_threads=1))
    bound, free = rig.add(ask(1, "5 6 7")), rig.add(ask(2, None))
    rig.run()
    assert free.reasons == [FinishReason.LENGTH]
    may_go.set()
    assert woken.wait(timeout=60)
    go_on(rig)
    assert bound.token_ids == [5, 6, 7]
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


@pytest.mark.parametrize("is_prepared", [True, False])
def test_what_makes_matchers_is_read_once_and_beside_the_loop(is_prepared: bool) -> None:
    woken, threads = threading.Event(), list[int]()

    def load() -> CreateMatcher:
        threads.append(threading.get_ident())
        return Lists

    maker = ThreadMaker(load, woken.set, num_mask_threads=1)
    if is_prepared:
        maker.prepare()
    rig = create_rig(maker)
    for number in (1, 2):
        bound = rig.add(ask(number, f"5 6 {number}"))
        rig.run()
        assert woken.wait(timeout=60)
        woken.clear()
        go_on(rig)
        assert bound.token_ids == [5, 6, number]
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


class Panic(BaseException):
    """What a library in Rust throws where it has given up."""


@pytest.mark.parametrize(
    "error", [UnsupportedFeature("This tokenizer has no token masks."), Panic(), ValueError()]
)
def test_a_vocabulary_without_masks_refuses_grammars_and_nothing_else(error: BaseException) -> None:
    woken = threading.Event()

    def load() -> CreateMatcher:
        raise error

    rig = create_rig(ThreadMaker(load, woken.set, num_mask_threads=1))
    bound, free = rig.add(ask(1, "5 6 7")), rig.add(ask(2, None))
    rig.run()
    assert woken.wait(timeout=60)
    go_on(rig)
    assert bound.error_codes == ["unsupported_feature"]
    assert free.reasons == [FinishReason.LENGTH]


def refuse(grammar: str) -> Lists:
    raise ServiceError("No.")


def break_down(grammar: str) -> Lists:
    raise RuntimeError(grammar)


@pytest.mark.parametrize("create", [refuse, break_down])
def test_what_goes_wrong_in_making_is_an_answer(create: Callable[[str], Lists]) -> None:
    rig = create_rig(InlineMaker(create))
    failed, other = rig.add(ask(1, "5")), rig.add(ask(2, None))
    rig.run()
    assert len(failed.error_codes) == 1
    assert other.reasons == [FinishReason.LENGTH]
    assert SequenceId(1) not in rig.scheduler._desk
