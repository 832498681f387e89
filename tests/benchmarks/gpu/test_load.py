"""Loads of the GPU benchmark, on a real engine core with a tiny model."""

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.gpu.families import compare
from benchmarks.gpu.load import (
    Load,
    Messages,
    Streams,
    Trace,
    carry,
    create_request,
    create_settings,
)
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import SHAPES, TINY
from benchmarks.gpu.throughput import draw_conversations, draw_workload, list_falling_lengths
from gpu_pool.engine.messages import AddSequence, Sleep, ToCore, Wake
from gpu_pool.plan import Executor, TokenScore

CONTEXT = 256


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = create_random_executor(SHAPES[TINY], "cpu", context_window=CONTEXT, num_blocks=64)
    yield executor
    executor.close()


def create_requests(count: int, num_tokens: int = 6) -> list[AddSequence]:
    """Requests with prompts of different lengths."""
    return [create_request(i, range(1, 9 + i), num_tokens) for i in range(count)]


class Watched(Streams):
    """Streams that say how many were ever under way at once."""

    most = 0

    def take(self, load: Load) -> Sequence[ToCore] | None:
        """The next."""
        taken = super().take(load)
        self.most = max(self.most, load.num_running + len(taken or ()))
        return taken


def test_every_request_is_answered_to_its_last_token_and_no_more_run_than_asked(
    executor: Executor,
) -> None:
    source = Watched(create_requests(7), 3)
    (run,) = carry(executor, [source], create_settings(3, 64))
    assert source.most == 3
    assert (run.num_over, run.num_tokens, run.was_cut) == (7, 42, False)
    assert run.num_prompt_tokens == sum(8 + i for i in range(7))
    for trace in run.traces:
        assert trace.token_s == sorted(trace.token_s)
        assert trace.first_s > 0


def test_parts_follow_one_another_and_a_sleep_lies_between_them(executor: Executor) -> None:
    parts = [
        Streams(create_requests(4)),
        Messages(Sleep()),
        Messages(Wake(), *create_requests(4)),
    ]
    first, slept, woken = carry(executor, parts, create_settings(4, 64))
    assert (len(slept.traces), len(slept.moves_s), len(woken.moves_s)) == (0, 1, 1)
    assert [t.token_ids for t in first.traces] == [t.token_ids for t in woken.traces]
    assert woken.traces[0].first_s > woken.moves_s[0]


def test_what_is_not_over_in_time_is_given_up(executor: Executor) -> None:
    (run,) = carry(executor, [Streams(create_requests(4, 200))], create_settings(4, 64), 0.02)
    assert run.was_cut
    assert run.num_over < 4


def test_a_request_that_fails_is_no_figure(executor: Executor) -> None:
    too_long = create_request(0, range(1, CONTEXT), CONTEXT)
    with pytest.raises(AssertionError, match="context"):
        carry(executor, [Streams([too_long])], create_settings(4, 64))


def test_the_workload_is_that_of_its_authors() -> None:
    lengths = draw_workload(256, 1024)
    assert sum(prompt for prompt, _ in lengths) == 142_827
    assert sum(answer for _, answer in lengths) == 133_966


def test_conversations_have_the_lengths_that_people_write() -> None:
    lengths = draw_conversations(4000, 2048)
    assert 210 < sum(prompt for prompt, _ in lengths) / 4000 < 255
    assert 200 < sum(answer for _, answer in lengths) / 4000 < 240
    assert max(map(max, lengths)) > 1000
    assert min(map(min, lengths)) >= 4


def test_a_warm_up_has_steps_of_every_size() -> None:
    lengths = list_falling_lengths(200)
    running = [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert len(lengths) == 200
    for size in (1, 2, 4, *range(8, 201, 8)):
        assert running.count(size) >= 3
    assert list_falling_lengths(1) == [3]


def create_trace(token_ids: list[int], margin: float, logprob: float = -1.0) -> Trace:
    """An answer whose tokens were so much likelier than the next."""
    top = ((1, -1.0), (2, -1.0 - margin))
    scores = [TokenScore(logprob, top) for _ in token_ids]
    return Trace(3, 0.0, [1.0] * len(token_ids), token_ids, scores)


def test_answers_may_differ_by_a_tie_alone() -> None:
    expected = create_trace([5, 6, 7], margin=1e-6)
    assert compare("it", expected, create_trace([5, 6, 7], 1.0)).num_equal == 3
    agreement = compare("it", expected, create_trace([5, 9, 9], 1.0))
    assert (agreement.num_equal, agreement.num_ties) == (1, 1)
    with pytest.raises(AssertionError, match="is 9 and not 6"):
        compare("it", create_trace([5, 6, 7], 0.5), create_trace([5, 9, 9], 0.5))
    with pytest.raises(AssertionError, match="off by"):
        compare("it", expected, create_trace([5, 6, 7], 1.0, logprob=-1.1))
