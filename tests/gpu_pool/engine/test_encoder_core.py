"""An encoder's core over an executor that counts: batches, turns, bounds, aborts and ends."""

import itertools
import random
from typing import Any

import pytest

from contracts.encoding import Pooling
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.encoder_core import EncoderCore
from gpu_pool.engine.messages import (
    AbortSequence,
    AddTexts,
    CoreFailed,
    CoreSlept,
    CoreWoken,
    FromCore,
    Ping,
    Pong,
    Shutdown,
    Sleep,
    SleepRefused,
    StepOutput,
    ToCore,
    Wake,
)
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import EncodePlan, EncoderInfo, SequenceId

INFO = EncoderInfo(context_window=64, vocab_size=1000, model_revision="r", weights_bytes=7)


class CountingExecutor:
    """A text's vector says which tokens it was made of."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.plans: list[EncodePlan] = []
        self.moves: list[str] = []
        self._fails_at = fails_at

    @property
    def info(self) -> EncoderInfo:
        return INFO

    def encode(self, plan: EncodePlan) -> tuple[bytes, ...]:
        self.plans.append(plan)
        if len(self.plans) - 1 == self._fails_at:
            raise RuntimeError("out of memory")
        return tuple(bytes(token_ids) for token_ids in plan.token_ids)

    def sleep(self) -> int:
        self.moves.append("sleep")
        return INFO.weights_bytes

    def wake(self) -> int:
        self.moves.append("wake")
        return INFO.weights_bytes

    def close(self) -> None: ...


class ScriptedTransport:
    """Hands the core one list of messages per step, then tells it to stop when all is done."""

    def __init__(self, *steps: list[ToCore]) -> None:
        self._steps = list(steps)
        self.sent: list[Any] = []

    def receive(self, block: bool, max_wait_s: float | None = None) -> list[ToCore]:
        if self._steps:
            return self._steps.pop(0)
        return [Shutdown()] if block else []

    def wake(self) -> None: ...

    def send(self, message: FromCore) -> None:
        self.sent.append(message)

    @property
    def outputs(self) -> list[StepOutput]:
        return [message for message in self.sent if isinstance(message, StepOutput)]

    def ends(self) -> dict[int, Any]:
        found = [end for output in self.outputs for end in output.finished]
        assert len(found) == len({end.sequence_id for end in found})
        return {end.sequence_id: end.error.code if end.error else end.reason for end in found}

    def vectors(self, sequence_id: int) -> dict[int, bytes]:
        found = [
            pair
            for output in self.outputs
            for encoded in output.encoded
            if encoded.sequence_id == sequence_id
            for pair in zip(encoded.indices, encoded.vectors, strict=True)
        ]
        assert len(found) == len(dict(found))
        return dict(found)


def texts(
    number: int, *lengths: int, account: str = "a", priority: int = 0, rejects: bool = False
) -> AddTexts:
    return AddTexts(
        SequenceId(number),
        AccountId(account * 32),
        tuple((number,) * length for length in lengths),
        (0,) * len(lengths),
        Pooling.MEAN,
        priority,
        rejects,
    )


def serve(
    transport: ScriptedTransport, executor: CountingExecutor | None = None, **settings: Any
) -> CountingExecutor:
    executor = executor or CountingExecutor()
    limits = SchedulerSettings(**({"max_batch_tokens": 64} | settings))
    seconds = itertools.count(0.0, 0.5)  # each look at the clock is half a second later
    EncoderCore(executor, limits, transport, lambda: next(seconds)).run()
    return executor


def test_every_text_comes_back_once_whatever_arrives() -> None:
    chance = random.Random(3)
    added = [
        texts(
            number,
            *(chance.randint(1, 40) for _ in range(chance.randint(1, 30))),
            account=chance.choice("abc"),
            priority=chance.randint(0, 1),
        )
        for number in range(1, 40)
    ]
    transport = ScriptedTransport(*[list[ToCore](added[i : i + 3]) for i in range(0, 39, 3)])
    executor = serve(transport)
    assert transport.ends() == dict.fromkeys(range(1, 40), FinishReason.STOP)
    for message in added:
        expected = {index: bytes(ids) for index, ids in enumerate(message.token_ids)}
        assert transport.vectors(message.sequence_id) == expected
    for plan in executor.plans:
        lengths = [len(ids) for ids in plan.token_ids]
        assert lengths == sorted(lengths)
        assert sum(lengths) <= 64
    assert transport.outputs[-1].load.num_running == transport.outputs[-1].load.num_waiting == 0


def test_a_text_longer_than_a_batch_goes_alone() -> None:
    executor = serve(ScriptedTransport([texts(1, 3, 63, 2)]), max_batch_tokens=64)
    assert [sorted(map(len, plan.token_ids)) for plan in executor.plans] == [[3], [63], [2]]
    executor = serve(ScriptedTransport([texts(1, 3, 60, 2)]), max_batch_tokens=64)
    assert [sorted(map(len, plan.token_ids)) for plan in executor.plans] == [[3, 60], [2]]
    executor = serve(
        ScriptedTransport([texts(1, 60)]), max_batch_tokens=16, max_running=8, max_chunk_tokens=8
    )
    assert len(executor.plans) == 1


def test_one_text_does_not_wait_for_another_accounts_thousand() -> None:
    transport = ScriptedTransport([texts(1, *[16] * 1000)], [texts(2, 16, account="b")])
    executor = serve(transport)
    assert any(2 in {ids[0] for ids in plan.token_ids} for plan in executor.plans[:3])
    assert len(transport.vectors(1)) == 1000


def test_what_still_waits_and_how_fast_it_goes_is_told() -> None:
    transport = ScriptedTransport([texts(1, *[32] * 5)])
    serve(transport)
    loads = [output.load for output in transport.outputs if output.encoded]
    assert [load.num_queued_tokens for load in loads] == [96, 32, 0]
    assert {load.prefill_per_s for load in loads[:2]} == {64 / 0.5}


def test_the_higher_priority_goes_first() -> None:
    transport = ScriptedTransport([texts(1, *[32] * 4), texts(2, *[32] * 4, priority=1)])
    plans = serve(transport).plans
    assert [plan.token_ids[0][0] for plan in plans] == [2, 2, 1, 1]


def test_an_abort_ends_within_one_step_and_leaves_nothing() -> None:
    transport = ScriptedTransport([texts(1, *[32] * 100)], [], [AbortSequence(SequenceId(1))])
    executor = serve(transport)
    assert transport.ends() == {1: FinishReason.ABORTED}
    assert len(executor.plans) == 2


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({"max_running": 1, "max_waiting": 1}, {3}),
        ({"max_waiting_tokens": 40}, {2, 3}),
        ({"max_running": 1, "max_account_waiting": 0}, {2}),
        ({"max_account_waiting_tokens": 40}, {2}),
        ({}, set()),
    ],
)
def test_what_has_no_room_is_refused_at_once(limits: Any, refused: set[int]) -> None:
    arriving: list[ToCore] = [texts(1, 32), texts(2, 32), texts(3, 32, account="b")]
    transport = ScriptedTransport(arriving)
    serve(transport, **limits)
    assert {n for n, end in transport.ends().items() if end == "pool_saturated"} == refused
    assert refused.isdisjoint(n for n in (1, 2, 3) if transport.vectors(n))


def test_who_may_not_wait_is_refused_while_others_do() -> None:
    arriving: list[ToCore] = [texts(1, *[32] * 4), texts(2, 4, account="b", rejects=True)]
    transport = ScriptedTransport(arriving, [], [], [], [texts(3, 4, rejects=True)])
    serve(transport)
    assert transport.ends() == {1: "stop", 2: "pool_saturated", 3: "stop"}


def test_a_failing_model_answers_everybody_and_says_so() -> None:
    transport = ScriptedTransport([texts(1, *[64] * 3), texts(2, 64)])
    with pytest.raises(RuntimeError):
        serve(transport, CountingExecutor(fails_at=1))
    assert set(transport.ends().values()) == {"stream_broken"}
    assert isinstance(transport.sent[-1], CoreFailed)


def test_an_encoder_sleeps_only_without_texts_and_encodes_what_came_meanwhile() -> None:
    transport = ScriptedTransport(
        [texts(1, 5), Sleep()], [Sleep(), Sleep()], [texts(2, 6)], [Wake()], []
    )
    executor = serve(transport)
    moves = [message for message in transport.sent if not isinstance(message, StepOutput)]
    assert moves[1:] == [SleepRefused(1), CoreSlept(0.5, 7), CoreSlept(0.5, 0), CoreWoken(0.5, 7)]
    assert executor.moves == ["sleep", "wake"]
    assert set(transport.ends().values()) == {FinishReason.STOP}
    assert [plan.token_ids[0][0] for plan in executor.plans] == [1, 2]


def test_a_ping_is_answered_at_work_at_rest_and_asleep() -> None:
    transport = ScriptedTransport([texts(1, 40, 40, 40), Ping()], [Ping()], [], [Sleep()], [Ping()])
    serve(transport)
    kinds = [type(message) for message in transport.sent]
    assert transport.sent.count(Pong()) == 3
    assert kinds.index(Pong) < kinds.index(StepOutput)  # before the first step
    assert kinds[-2:] == [CoreSlept, Pong]
