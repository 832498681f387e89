"""Rows on the device, steps ahead of their results, recorded decode steps: no answer changes.

The lane runs here on a CPU, with the kernels' references; recordings are tapes, which repeat
operators on the memory they had, as CUDA graphs do.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from contracts.inference import FinishReason, SamplingParams
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings
from gpu_pool.plan import BlockId, NewSequence, SequenceId
from gpu_pool.runner.decode_graphs import list_sizes
from gpu_pool.runner.decode_program import DecodeProgram
from gpu_pool.runner.sequence_row import SequenceRow
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.engine.list_matcher import Lists
from tests.gpu_pool.runner.lane_rig import LaneRig, make_kernels
from tests.gpu_pool.runner.tape import Tape, TapeRecorder
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_REQUESTS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are one operator each."""
    make_kernels(monkeypatch)


def create_requests(**changes: Any) -> list[AddSequence]:
    """Half share a long prefix, half draw by a seed, some with filters."""
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(0, 300, (50,), generator=generator).tolist()
    requests: list[AddSequence] = []
    for i in range(NUM_REQUESTS):
        length = int(torch.randint(1, 60, (1,), generator=generator))
        own = torch.randint(0, 300, (length,), generator=generator).tolist()
        prompt = prefix + own if i % 2 else own
        temperature = 1.0 if i % 4 < 2 else 0.0
        num_tokens = 8 + i % 23
        request = create_request(i, prompt, max_tokens=num_tokens, temperature=temperature, seed=i)
        sampling = msgspec.structs.replace(request.sampling, **changes)
        requests.append(msgspec.structs.replace(request, sampling=sampling))
    return requests


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    """What a CPU's lane answers, step by step."""
    return LaneRig(folder, is_ahead=False).serve(create_requests())


RECORDERS = {"as written": lambda: None, "recorded": TapeRecorder}
LIMITS: dict[str, dict[str, Any]] = {
    "calm": {},
    "no cache": {"prefix_caching": False},
    "crowded": {"num_blocks": 40, "max_batch_tokens": 64, "max_chunk_tokens": 23},
    "swapped": {
        "num_blocks": 40,
        "max_batch_tokens": 64,
        "max_chunk_tokens": 23,
        "swap_bytes": 1 << 20,
    },
    "guessing": {"ngram": NgramSettings(min_match_tokens=1)},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("recorder", RECORDERS.values(), ids=RECORDERS)
def test_the_answers_are_those_of_a_lane_that_goes_step_by_step(
    folder: Path, expected: list[list[int]], recorder: Any, limits: dict[str, Any]
) -> None:
    rig = LaneRig(folder, recorder(), **limits)
    assert rig.serve(create_requests()) == expected


def test_decode_steps_are_replayed_once_their_size_was_met(
    folder: Path, expected: list[list[int]]
) -> None:
    rig = LaneRig(folder, TapeRecorder())
    assert rig.serve(create_requests()) == expected
    graphs = rig.lane._graphs
    assert graphs.recorded_sizes == [1, 2, 4, 8, 16, 20]
    assert graphs.num_replays > 10


def test_a_step_is_begun_while_the_one_before_is_under_way(folder: Path) -> None:
    rig = LaneRig(folder)
    rig.serve(create_requests())
    assert rig.most_under_way == 1  # beside the one that is collected next


SPECIAL: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "biases": {"logit_bias": ((17, 9.0), (18, -100.0))},
    "bad words": {"bad_spellings": (*((n, n) for n in range(300)), (17,), (3, 4, 5))},
    "scores": {"num_logprobs": 3},
    "scored prompts": {"num_prompt_logprobs": 2},
}


@pytest.mark.parametrize("changes", SPECIAL.values(), ids=SPECIAL)
def test_what_is_adjusted_or_scored_says_the_same_beside_others_and_holds_up_nobody(
    folder: Path, changes: dict[str, Any]
) -> None:
    special, plain = create_requests(**changes), create_requests()
    mixed = [(special if i % 5 == 2 else plain)[i] for i in range(NUM_REQUESTS)]
    calm, ahead = LaneRig(folder, is_ahead=False), LaneRig(folder, TapeRecorder())
    assert ahead.serve(mixed) == calm.serve(mixed)
    assert ahead.most_under_way == 1
    for i in range(NUM_REQUESTS):
        mine, theirs = ahead.outcomes[i], calm.outcomes[i]
        assert len(mine.scores) == len(theirs.scores)
        for ours, other in zip(
            mine.scores + mine.prompt_scores, theirs.scores + theirs.prompt_scores, strict=True
        ):
            assert ours.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_grammars_take_turns_with_plain_requests_and_hold(folder: Path) -> None:
    grammar = " ".join(f"{n}|{n + 100}|{n + 200}" for n in range(20, 30))
    bound = create_request(99, [1, 2, 3], max_tokens=20, grammar=grammar, temperature=1.0, seed=4)
    calm = LaneRig(folder, is_ahead=False, create_matcher=Lists)
    ahead = LaneRig(folder, TapeRecorder(), create_matcher=Lists)
    assert ahead.serve([bound, *create_requests()]) == calm.serve([bound, *create_requests()])
    assert [token % 100 for token in ahead.outcomes[99].token_ids] == list(range(20, 30))
    assert ahead.outcomes[99].reasons == [FinishReason.STOP]


def test_who_leaves_or_stops_in_a_step_under_way_changes_nobody_else(
    folder: Path, expected: list[list[int]]
) -> None:
    rig = LaneRig(folder, TapeRecorder())
    requests = create_requests()
    for request in requests:
        rig.add(request)
    for step in range(400):
        if not rig.scheduler.has_work:
            break
        rig.step()
        if step >= 12 and step % 3 == 0 and step // 3 - 4 < 8:
            rig.abort(3 * (step // 3 - 4))
    left = {n for n in range(NUM_REQUESTS) if rig.outcomes[n].reasons == [FinishReason.ABORTED]}
    assert left, "nobody left"
    for n in range(NUM_REQUESTS):
        answer = rig.outcomes[n].token_ids
        assert answer == (expected[n][: len(answer)] if n in left else expected[n])


def test_rows_of_padding_are_nobodys(folder: Path, expected: list[list[int]]) -> None:
    rig = LaneRig(folder, TapeRecorder(), prefix_caching=False)
    caches = [group.cache for group in rig.lane._steps._groups]
    for request in create_requests():
        rig.add(request)
    num_poisoned = 0
    while rig.scheduler.has_work:
        rig.step()
        if rig.lane._graphs.num_replays == 3 and not num_poisoned:
            num_poisoned = len(caches)
            for cache in caches:
                cache.blocks[cache.num_blocks :] = float("nan")
    assert num_poisoned
    assert [rig.outcomes[n].token_ids for n in range(NUM_REQUESTS)] == expected


class FullDevice(TapeRecorder):
    """Refuses the third recording and all that follow."""

    num_asked = 0

    def record(self, call: Any) -> Tape:
        self.num_asked += 1
        if self.num_asked > 2:
            raise torch.OutOfMemoryError("the device is full")
        return super().record(call)


def test_a_device_that_refuses_a_recording_goes_on_with_what_there_is(
    folder: Path, expected: list[list[int]]
) -> None:
    recorder = FullDevice()
    rig = LaneRig(folder, recorder)
    assert rig.serve(create_requests()) == expected
    assert len(rig.lane._graphs.recorded_sizes) <= 2
    assert rig.lane._graphs.num_replays > 0
    assert recorder.num_asked == 3, "a device that is full is not asked again"


# -- controls: each breaks one rule, and the same run finds it ------------------------------------


def _pad_with_a_row(program: DecodeProgram) -> None:
    """Padding reads and writes where a sequence has its row."""
    program._rows.scratch = 0


def _keep_old_tokens(program: DecodeProgram) -> None:
    """What a step draws is not what the next one reads."""
    program._rows.set_newest = lambda places, token_ids: None  # type: ignore[method-assign]


def _tell_no_blocks(program: DecodeProgram) -> None:
    """New blocks stay the host's secret."""
    program._rows.note_blocks = lambda row, nums_new: None  # type: ignore[method-assign]


@pytest.mark.parametrize("defect", [_pad_with_a_row, _keep_old_tokens, _tell_no_blocks])
def test_a_defect_shows(folder: Path, expected: list[list[int]], defect: Any) -> None:
    rig = LaneRig(folder, TapeRecorder())
    defect(rig.lane._graphs._program)
    assert rig.serve(create_requests()) != expected


def test_results_that_a_later_step_overwrites_show(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "clone", lambda self: self)
    assert LaneRig(folder, TapeRecorder()).serve(create_requests()) != expected


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: torch.ones(3)[int(torch.ones(1).long())], "the host reads"),
        (lambda: torch.ones(3) + torch.tensor([1.0, 2.0, 3.0]), "hands over"),
        (lambda: torch.ones(3).nonzero(), "depends on what it finds"),
    ],
)
def test_what_no_graph_can_hold_is_refused(call: Any, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        TapeRecorder().record(call)


def test_a_tape_repeats_operators_on_the_same_memory_with_the_numbers_of_then() -> None:
    memory, number = torch.zeros(3), 2.0
    tape = TapeRecorder().record(lambda: memory.add_(1).clone() * number)
    number = 5.0
    memory[:] = torch.tensor([1.0, 2.0, 3.0])
    assert tape.replay().tolist() == [4.0, 6.0, 8.0]
    assert memory.tolist() == [2.0, 3.0, 4.0]


# -- parts ----------------------------------------------------------------------------------------


def test_sizes_are_few_and_reach_the_most_rows() -> None:
    assert list_sizes(1) == [1]
    assert list_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = list_sizes(512)
    assert (sizes[:5], sizes[-3:], len(sizes)) == ([1, 2, 4, 8, 16], [480, 496, 512], 51)
    assert 256 in sizes
    assert 272 in sizes


def test_more_rows_than_there_are_places_is_an_error_of_ours(folder: Path) -> None:
    rig = LaneRig(folder)
    rig.lane._rows._free.clear()
    rig.add(create_request(1, [1, 2, 3]))
    with pytest.raises(AssertionError, match="more rows run"):
        rig.run()


@torch.inference_mode()
def test_what_a_row_left_untold_is_not_told_when_its_place_is_anothers(folder: Path) -> None:
    """A row that never computed, since its blocks were another's."""
    rows = LaneRig(folder).lane._rows
    before = [table.clone() for table in rows.tables]
    for n in range(2):
        new = NewSequence(SequenceId(n), (5 + n,), 1, 0, SamplingParams(temperature=0.0))
        row = SequenceRow(
            new, num_groups=1, table_size=4, vocab_size=300, device=torch.device("cpu")
        )
        row.tables[0].add_blocks((BlockId(3 + n),))
        rows.add(row)
        rows.note_blocks(row, [1])
        if n == 0:
            rows.release(row)
            rows.update()
            assert rows.newest_R[row.place] == 0
            assert all(a.equal(b) for a, b in zip(rows.tables, before, strict=True))
    rows.update()
    assert rows.newest_R[row.place] == 6
    assert rows.tables[0][row.place, 0] == 4
