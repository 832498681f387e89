"""Sequences and their adapters: who waits, who goes on, who gives way, and what nobody finds.

Adapters are the double's: `adapter(name, size)` takes so many of its 100 bytes.
"""

import hashlib
from pathlib import Path
from random import Random

import pytest

from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.adapter_gate import MOST_PASSED, AdapterGate
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.engine.messages import AddSequence, CoreSlept, CoreWoken, Sleep, Wake
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.plan import AdapterFile
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.test_core import serve
from tests.gpu_pool.engine.test_sleep import count_cached, receive_move

A, B, C = (AccountId(letter * 32) for letter in "abc")
PROMPT = list(range(1, 14))


def adapter(name: str, size: int | str = 10) -> AdapterFile:
    return AdapterFile(hashlib.sha256(name.encode()).digest(), f"/{size}", 1.0)


def request(
    number: int, file: AdapterFile | None = None, account: AccountId = A, **fields: object
) -> AddSequence:
    return create_request(
        number,
        PROMPT,
        salt=account.encode(),
        account_id=account,
        adapter=file,
        **fields,  # type: ignore[arg-type]
    )


def serve_all(rig: EngineRig, requests: list[AddSequence]) -> None:
    for one in requests:
        rig.add(one)
    rig.run()


def loads(rig: EngineRig) -> int:
    return rig.executor.adapters.num_loads


def test_who_waits_for_an_adapter_holds_up_nobody() -> None:
    rig = EngineRig()
    rig.executor.adapters.goes_on = False
    waiting, other = request(1, adapter("x")), request(2)
    rig.add(waiting)
    rig.add(other)
    for _ in range(6):
        rig.step()
    assert rig.outcomes[2].token_ids == rig.predict(other)
    assert not rig.outcomes[1].num_cached_tokens
    assert not rig.scheduler.has_work  # the core sleeps until the loader wakes it
    rig.executor.adapters.goes_on = True
    rig.run()
    assert rig.outcomes[1].token_ids == rig.predict(waiting)
    assert rig.predict(waiting) != rig.predict(other)  # the control: the adapter does something


def test_one_load_serves_all_who_want_it() -> None:
    rig = EngineRig()
    requests = [request(n, adapter("x"), account) for n, account in enumerate((A, B, A, C))]
    serve_all(rig, requests)
    assert loads(rig) == 1
    assert all(rig.outcomes[r.sequence_id].token_ids == rig.predict(r) for r in requests)


# -- prefixes ------------------------------------------------------------------------------------


def test_a_prefix_is_found_under_its_own_adapter_alone() -> None:
    rig = EngineRig()
    files = [adapter("x"), adapter("y"), None, adapter("x"), adapter("y"), None]
    for number, file in enumerate(files):
        serve_all(rig, [request(number, file)])
    found = [rig.outcomes[number].num_cached_tokens for number in range(6)]
    assert found == [[0], [0], [0], [12], [12], [12]]


def test_without_the_digest_in_the_keys_prefixes_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: then another adapter's prefix is found, and the double sees wrong content."""
    create_root = BlockHasher.create_root
    monkeypatch.setattr(
        BlockHasher, "create_root", lambda self, salt, _=b"": create_root(self, salt)
    )
    rig = EngineRig()
    serve_all(rig, [request(1, adapter("x"))])
    rig.add(request(2, adapter("y")))
    with pytest.raises(Exception, match="reads foreign content"):
        rig.run()


def test_other_weights_under_the_same_path_find_nothing() -> None:
    rig = EngineRig()
    for number, name in enumerate(("first", "second", "first")):
        file = adapter(name, 10)
        assert file.path == "/10"
        serve_all(rig, [request(number, file)])
    assert [rig.outcomes[n].num_cached_tokens for n in range(3)] == [[0], [0], [12]]


def test_two_accounts_with_one_adapter_find_nothing_of_each_other() -> None:
    rig = EngineRig()
    for number, account in enumerate((A, B, A)):
        serve_all(rig, [request(number, adapter("x"), account)])
    assert [rig.outcomes[n].num_cached_tokens for n in range(3)] == [[0], [0], [12]]


# -- ends ----------------------------------------------------------------------------------------


def test_waiting_ends_by_abort_and_deadline() -> None:
    rig = EngineRig()
    rig.executor.adapters.goes_on = False
    rig.add(request(1, adapter("x"), deadline_ms=500))
    rig.add(request(2, adapter("x")))
    rig.add(request(3, adapter("y")))
    rig.step()
    assert rig.scheduler.next_deadline_ms == 500
    rig.abort(2)
    assert rig.outcomes[2].reasons == [FinishReason.ABORTED]
    rig.now_ms = 501
    rig.step()
    assert rig.outcomes[1].error_codes == ["deadline_exceeded"]
    rig.abort(3)
    assert rig.scheduler.next_deadline_ms is None


@pytest.mark.parametrize("size", ["none", 101])
def test_an_adapter_that_does_not_fit_fails_its_requests_alone(size: int | str) -> None:
    rig = EngineRig()
    good = [request(3, adapter("x")), request(4)]
    serve_all(rig, [request(1, adapter("bad", size)), request(2, adapter("bad", size)), *good])
    for number in (1, 2):
        assert rig.outcomes[number].error_codes == ["adapter_unsupported"]
    assert all(rig.outcomes[r.sequence_id].token_ids == rig.predict(r) for r in good)


def test_a_model_without_adapters_refuses_them() -> None:
    rig = EngineRig(info=create_double_info(max_adapter_rank=0))
    serve_all(rig, [request(1, adapter("x")), request(2)])
    assert rig.outcomes[1].error_codes == ["adapter_unsupported"]
    assert rig.outcomes[2].reasons == [FinishReason.LENGTH]


def test_who_does_not_want_to_wait_waits_for_a_load_and_not_for_room() -> None:
    rig = EngineRig()
    serve_all(rig, [request(1, adapter("x"), reject_if_busy=True)])
    assert rig.outcomes[1].reasons == [FinishReason.LENGTH]
    rig.add(request(2, adapter("large", 95), max_tokens=40))
    for _ in range(4):
        rig.step()
    serve_all(rig, [request(3, adapter("y"), reject_if_busy=True)])
    assert rig.outcomes[3].error_codes == ["pool_saturated"]
    assert rig.outcomes[2].reasons == [FinishReason.LENGTH]


def test_a_load_that_nobody_waits_for_any_more_serves_who_comes_later() -> None:
    rig = EngineRig()
    rig.add(request(1, adapter("x")))
    rig.step()
    rig.executor.adapters.goes_on = False
    rig.step()
    rig.abort(1)
    rig.add(request(2, adapter("x")))
    rig.step()
    rig.executor.adapters.goes_on = True
    rig.run()
    assert rig.outcomes[2].token_ids == rig.predict(request(2, adapter("x")))
    assert loads(rig) == 1


# -- room ----------------------------------------------------------------------------------------


def test_many_of_one_account_keep_the_loader_from_nobody() -> None:
    rig = EngineRig()
    rig.executor.adapters.goes_on = False
    for number in range(20):
        rig.add(request(number, adapter(f"a{number}"), A))
    rig.step()
    rig.add(request(20, adapter("b"), B))
    rig.step()
    assert rig.executor.adapters.asked == {adapter("a0").digest, adapter("b").digest}
    rig.executor.adapters.goes_on = True
    rig.run()
    assert all(outcome.reasons == [FinishReason.LENGTH] for outcome in rig.outcomes.values())


def test_the_least_recently_used_one_goes() -> None:
    rig = EngineRig()
    for number, name in enumerate(("x", "y", "x", "z")):
        serve_all(rig, [request(number, adapter(name, 40))])
    assert loads(rig) == 3
    serve_all(rig, [request(5, adapter("x", 40))])
    assert loads(rig) == 3
    serve_all(rig, [request(6, adapter("y", 40))])
    assert loads(rig) == 4


def test_nobody_evicts_anothers_by_loading_many() -> None:
    rig = EngineRig()
    serve_all(rig, [request(1, adapter("a", 20), A)])
    for number in range(2, 12):
        serve_all(rig, [request(number, adapter(f"b{number}", 20), B)])
    before = loads(rig)
    serve_all(rig, [request(20, adapter("a", 20), A)])
    assert loads(rig) == before
    serve_all(rig, [request(21, adapter("b2", 20), B)])  # the control: its own are gone
    assert loads(rig) == before + 1


def test_one_in_use_stays_and_others_wait_for_it() -> None:
    rig = EngineRig()
    rig.add(request(1, adapter("x", 60), max_tokens=30))
    for _ in range(4):
        rig.step()
    rig.add(request(2, adapter("y", 60), B))
    for _ in range(5):
        rig.step()
    assert not rig.outcomes[2].num_cached_tokens
    rig.run()
    assert rig.outcomes[1].token_ids == rig.predict(request(1, adapter("x", 60), max_tokens=30))
    assert rig.outcomes[2].token_ids == rig.predict(request(2, adapter("y", 60), B))


def test_waiting_for_a_place_keeps_no_adapter_from_higher_priority() -> None:
    rig = EngineRig(SchedulerSettings(max_running=1))
    rig.add(request(1, max_tokens=60, priority=1))
    rig.step()
    rig.add(request(2, adapter("x", 90)))
    for _ in range(4):
        rig.step()
    assert loads(rig) == 1  # it has its adapter, and no place
    rig.add(request(3, adapter("y", 90), B, priority=2))
    rig.run()
    assert rig.outcomes[3].token_ids == rig.predict(request(3, adapter("y", 90), B))
    assert rig.outcomes[2].token_ids == rig.predict(request(2, adapter("x", 90)))


def test_small_ones_do_not_keep_a_large_one_out_for_ever() -> None:
    rig = EngineRig(SchedulerSettings(max_running=8))
    rig.add(request(0, adapter("s0", 30), B, max_tokens=6))
    for _ in range(3):
        rig.step()
    rig.add(request(1, adapter("large", 100), A))
    number = 2
    while not rig.outcomes[1].num_cached_tokens:
        rig.add(request(number, adapter(f"s{number}", 30), B, max_tokens=6))
        rig.step()
        number += 1
        assert number < 40 * MOST_PASSED
    rig.run()
    assert all(not outcome.error_codes for outcome in rig.outcomes.values())


def keep_in_use(rig: EngineRig, names: str, size: int, wanted: AddSequence) -> int:
    """Has an account ask with each of these adapters over and over, each twice at any time; steps
    until `wanted`, which comes when all are in use, is answered; 400 at most.
    """
    numbers = iter(range(1, 1000))
    live: list[tuple[str, AddSequence]] = []

    def ask(name: str) -> None:
        one = request(next(numbers), adapter(name, size), A, max_tokens=20)
        rig.add(one)
        live.append((name, one))

    for _ in range(2):
        for name in names:
            ask(name)
        for _ in range(5):
            rig.step()
    rig.add(wanted)
    num_steps = 0
    while num_steps < 400:
        rig.step()
        rig.scheduler.check()
        num_steps += 1
        if rig.outcomes[wanted.sequence_id].reasons:
            break
        for name, one in [*live]:
            if rig.outcomes[one.sequence_id].reasons:
                live.remove((name, one))
                ask(name)
    rig.run()
    for _, one in live:
        assert rig.outcomes[one.sequence_id].token_ids == rig.predict(one)
    return num_steps


@pytest.mark.parametrize(("names", "size", "wanted_size"), [("abcd", 25, 25), ("a", 50, 100)])
def test_adapters_that_are_always_in_use_keep_nobody_out_for_ever(
    names: str, size: int, wanted_size: int
) -> None:
    rig = EngineRig()
    wanted = request(5000, adapter("other", wanted_size), B, max_tokens=2)
    assert keep_in_use(rig, names, size, wanted) < 200
    assert rig.outcomes[5000].token_ids == rig.predict(wanted)


def test_adapters_that_are_never_closed_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: each of them is always in use by somebody."""
    monkeypatch.setattr(AdapterGate, "_close", lambda *_: None)
    rig = EngineRig()
    assert keep_in_use(rig, "abcd", 25, request(5000, adapter("other", 25), B)) == 400


def test_nothing_is_closed_for_one_that_takes_more_than_twice_as_much() -> None:
    rig = EngineRig()
    wanted = request(5000, adapter("other", 100), B, max_tokens=2)
    assert keep_in_use(rig, "a", 45, wanted) == 400  # at 50 it gets in, as is shown above
    assert rig.outcomes[5000].token_ids == rig.predict(wanted)  # when nobody asks any more


def test_so_many_pass_before_anything_is_closed() -> None:
    rig = EngineRig()
    rig.add(request(0, adapter("a", 90), A, max_tokens=200))
    for _ in range(4):
        rig.step()
    rig.add(request(1000, adapter("b", 90), B, max_tokens=2))
    for _ in range(4):
        rig.step()
    num_passed = 0
    while num_passed < 40:
        number = num_passed + 1
        rig.add(request(number, adapter("a", 90), A, max_tokens=2))
        for _ in range(6):
            rig.step()
        if not rig.outcomes[number].reasons:
            break
        num_passed += 1
    assert num_passed == MOST_PASSED
    rig.run()
    assert rig.outcomes[1000].token_ids == rig.predict(request(1000, adapter("b", 90), B))[:2]


def test_who_does_not_want_to_wait_is_refused_before_a_closed_one() -> None:
    rig = EngineRig()
    for number in range(2):
        rig.add(request(number, adapter("a", 90), A, max_tokens=200))
    for _ in range(4):
        rig.step()
    rig.add(request(100, adapter("b", 90), B, max_tokens=2))
    for number in range(2, 20):
        rig.step()
        rig.add(request(number, adapter("a", 90), A, max_tokens=2))
    for _ in range(20):
        rig.step()
    rig.add(request(200, adapter("a", 90), A, reject_if_busy=True))
    rig.add(request(201, adapter("a", 90), A, deadline_ms=rig.now_ms + 1))
    rig.step()
    assert rig.outcomes[200].error_codes == ["pool_saturated"]
    rig.now_ms += 2
    rig.step()
    assert rig.outcomes[201].error_codes == ["deadline_exceeded"]
    rig.abort(100)  # nobody waits for room any more: what was closed is open again
    rig.add(request(202, adapter("a", 90), A, max_tokens=2, reject_if_busy=True))
    rig.add(request(203, adapter("a", 90), A, max_tokens=2))
    rig.step()
    rig.run()
    assert rig.outcomes[203].reasons == [FinishReason.LENGTH]
    assert loads(rig) == 1


def test_a_preempted_sequence_goes_on_with_its_adapter() -> None:
    rig = EngineRig(info=create_double_info(num_blocks=14))
    requests = [
        request(n, adapter("xyz"[n % 3], 45), (A, B, C)[n % 3], max_tokens=20) for n in range(6)
    ]
    serve_all(rig, requests)
    assert all(rig.outcomes[r.sequence_id].token_ids == rig.predict(r) for r in requests)
    num_begun = sum(len(plan.new) for plan in rig.plans)
    assert num_begun > len(requests), "nobody was preempted"


@pytest.mark.parametrize("seed", range(12))
def test_every_waiter_gets_in_or_is_refused(seed: int) -> None:
    """The double refuses what is over the bound or computed without its adapter; after every move
    the books say that nobody runs without one.
    """
    random = Random(seed)
    info = create_double_info(num_blocks=random.choice([20, 64]), max_in_flight=1 + seed % 2)
    rig = EngineRig(SchedulerSettings(max_running=random.choice([2, 8])), info)
    sizes = {f"{name}": random.choice([5, 20, 35, 50, 100, 101]) for name in range(12)}
    requests: dict[int, AddSequence] = {}
    aborted: set[int] = set()
    for number in range(120):
        name = random.choice([*sizes, ""])
        requests[number] = request(
            number,
            adapter(name, sizes[name]) if name else None,
            random.choice([A, A, A, B, C]),
            priority=random.randrange(2),
            max_tokens=random.randrange(1, 9),
            reject_if_busy=random.random() < 0.1,
        )
        rig.add(requests[number])
        rig.executor.adapters.goes_on = random.random() < 0.7
        for _ in range(random.randrange(4)):
            rig.step()
        if random.random() < 0.1:
            aborted.add(number)
            rig.abort(number)
    rig.executor.adapters.goes_on = True
    rig.run()
    num_answered = 0
    for number, one in requests.items():
        outcome = rig.outcomes[number]
        is_large = one.adapter is not None and one.adapter.path == "/101"
        assert len(outcome.reasons) == 1
        if outcome.error_codes:
            assert outcome.error_codes in (["adapter_unsupported"], ["pool_saturated"])
            assert is_large or one.reject_if_busy
        elif number not in aborted:
            assert not is_large
            assert outcome.token_ids == rig.predict(one)
            num_answered += one.adapter is not None
    assert num_answered > 40
    assert loads(rig) > len(sizes)  # the control: some had to go for others


# -- the core ------------------------------------------------------------------------------------


def test_adapters_are_dropped_at_sleep_and_loaded_again(tmp_path: Path) -> None:
    executor = ExecutorDouble(create_double_info())
    with serve(tmp_path, executor) as server:
        for number in (1, 2):
            server.send(request(number, adapter("x")))
            server.receive_until_finished(number)
        assert executor.adapters.num_loads == 1
        server.send(Sleep())
        assert isinstance(receive_move(server), CoreSlept)
        assert not executor.adapters.digests
        server.send(request(3, adapter("x")))
        server.send(Wake())
        assert isinstance(receive_move(server), CoreWoken)
        server.receive_until_finished(3)
        assert executor.adapters.num_loads == 2
        assert count_cached(server, 2) == 12
        assert count_cached(server, 3) == 0
        assert server.list_tokens(3) == server.list_tokens(1)


def test_a_crowd_that_waits_for_adapters_is_looked_at_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One account's hundreds of adapters, one of which is loaded in each step or two: everybody's
    steps wait for whatever is done for them.
    """
    rig = EngineRig(check_every=1000)
    rig.add(request(999, account=B, max_tokens=200))
    for number in range(100):
        rig.add(request(number, adapter(str(number), 50), max_tokens=2))
    for _ in range(110):  # all are measured first
        rig.step()
    num_looks = 0
    precedence = Sequence.precedence.fget
    assert precedence is not None

    def look(sequence: Sequence) -> tuple[int, int]:
        nonlocal num_looks
        num_looks += 1
        return precedence(sequence)

    monkeypatch.setattr(Sequence, "precedence", property(look))
    for _ in range(60):
        rig.step()
    assert loads(rig) > 20  # the control
    assert 100 < num_looks < 2 * 60 * 80
