"""Ways of carrying out the same steps: replayed, as written, one at a time, by way of the host.

Tokens are the same, bit for bit where the calls are the same; what each way costs a step is told.
Raises where answers differ. Read next: `gpu_pool.runner.device_lane`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import msgspec

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.families import FAMILIES, create_tiny_executor
from benchmarks.gpu.faults import Faults
from benchmarks.gpu.load import Run, Streams, carry, create_request, create_settings, draw_prompt
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.shapes import BLOCK_SIZE, QWEN_SMALL
from benchmarks.harness import Figure, summarise
from contracts.inference import SamplingParams
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import NgramSettings, SchedulerSettings
from gpu_pool.parallel.stage_link import ONLY_STAGE
from gpu_pool.plan import Executor
from gpu_pool.runner.decode_graphs import CudaRecorder
from gpu_pool.runner.host_lane import HostLane
from gpu_pool.worker.lanes import LaneChoice, device_lane

REPLAYED: Final = "replayed, ahead"
WRITTEN: Final = "as written, ahead"
ALONE: Final = "replayed, one at a time"
BY_HOST: Final = "by way of the host"
_FAMILIES: Final = ("llama", "gpt-oss", "deepseek v3")
_VOCAB_SIZE: Final = 512
_NUM_REQUESTS: Final = 13
"""Steps are padded."""
_SPECIAL: Final = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "biases": {"logit_bias": ((17, 9.0), (18, -100.0))},
    "bad words": {"bad_spellings": (*((n, n) for n in range(400)), (17,), (3, 4, 5))},
    "scores": {"num_logprobs": 3},
    "filters": {"top_k": 20, "top_p": 0.9},
}


class EvenTokens:
    """A grammar of which only even ids are words."""

    has_given_up = False
    is_finished = False

    def __init__(self, grammar: str) -> None:
        """Takes any grammar for this one."""
        del grammar

    def copy(self) -> "EvenTokens":
        """There is nothing to it."""
        return self

    def fill_mask(self) -> bytes:
        """Every other bit."""
        return b"\x55" * (_VOCAB_SIZE // 8)

    def accept(self, token_id: int) -> bool:
        """False for an odd one."""
        return token_id % 2 == 0


def check_lanes(bench: Bench) -> list[Figure]:
    """Answers are those of the plainest way. Raises: `AssertionError` naming family and way."""
    num_equal = 0
    requests = _create_mixed_requests(bench.pick(48, 20))
    lanes = create_lanes(bench)
    plain = create_settings(_NUM_REQUESTS, 256)
    guessing = msgspec.structs.replace(plain, ngram=NgramSettings(min_match_tokens=1))
    ways = [(name, plain) for name in lanes] + [(REPLAYED, guessing)]
    faults = Faults()
    for family in bench.pick(_FAMILIES, _FAMILIES[:1]):
        expected = _answer(family, bench, lanes[BY_HOST](), requests, plain)
        for name, settings in ways:
            kind = "with guesses" if settings.ngram else "without guesses"
            with faults.gathered(f"{family}, {name}, {kind}"):
                found = _answer(family, bench, lanes[name](), requests, settings)
                others = [index for index, own in enumerate(found) if own != expected[index]]
                assert not others, f"answers {others} of {len(expected)} are others"
                num_equal += len(found)
    faults.conclude()
    return [summarise("lanes float32", OURS, "equal answers", "answers", num_equal, [num_equal])]


def measure_lanes(bench: Bench) -> list[Figure]:
    """The same answers of 0.6B shapes in bf16 by each way, and milliseconds of a step."""
    num_tokens = bench.pick(128, 12)
    figures: list[Figure] = []
    for size in bench.pick((1, 64), (1, 4)):
        answers: dict[str, list[list[int]]] = {}
        for name, create_lane in create_lanes(bench).items():
            run = _measure_lane(bench, create_lane(), size, num_tokens)
            together_s = max(trace.token_s[0] for trace in run.traces)
            steps = [
                1000 * gap
                for trace in run.traces[:1]
                for gap, at_s in zip(trace.gaps_s, trace.token_s, strict=False)
                if at_s >= together_s
            ]
            answers[name] = [trace.token_ids for trace in run.traces]
            figures.append(
                summarise(f"{QWEN_SMALL} lanes, {name}", OURS, "step", "ms", size, steps)
            )
        same = [answers[name] for name in (REPLAYED, WRITTEN, ALONE) if name in answers]
        assert all(found == same[0] for found in same), f"tokens of {size} answers differ by way"
    return figures


def create_lanes(bench: Bench) -> dict[str, Callable[[], LaneChoice]]:
    """Every way by name, for one executor each time. Without a GPU nothing is recorded."""
    with bench.optional():
        bench.require_gpu("a recorded step")

    def replay() -> LaneChoice:
        return device_lane(CudaRecorder() if bench.device == "cuda" else None)

    return {
        BY_HOST: lambda: LaneChoice(lambda model, groups, *_: HostLane(model, groups, ONLY_STAGE)),
        WRITTEN: lambda: device_lane(None),
        ALONE: lambda: replace(replay(), max_in_flight=1),
        REPLAYED: replay,
    }


def _measure_lane(bench: Bench, lane: LaneChoice, size: int, num_tokens: int) -> Run:
    """The second of two equal loads."""
    length = bench.pick(256, 16)
    executor = create_random_executor(
        bench.find_shapes(QWEN_SMALL),
        bench.device,
        context_window=length + num_tokens + BLOCK_SIZE,
        num_blocks=2 * size * ((length + num_tokens) // BLOCK_SIZE + 2),
        lane=lane,
    )
    parts = [_create_requests(executor, size, length, num_tokens, seed) for seed in (1, 2)]
    settings = create_settings(size, bench.pick(16_384, 512), prefix_caching=False)
    runs = carry(executor, map(Streams, parts), settings)
    executor.close()
    bench.free_memory()
    return runs[-1]


def _create_requests(
    executor: Executor, size: int, length: int, num_tokens: int, seed: int
) -> list[AddSequence]:
    """Prompts of one length, drawn for at temperature 1, so that a bit of a logit can show."""
    rng = Random(seed)
    return [
        create_request(
            index, draw_prompt(rng, length, executor.info.vocab_size), num_tokens, temperature=1.0
        )
        for index in range(size)
    ]


def _create_mixed_requests(num_tokens: int) -> list[AddSequence]:
    """Plain and greedy ones, and one of each kind that needs the host."""
    rng = Random(3)
    requests = [
        create_request(
            index,
            draw_prompt(rng, 5 + 37 * index % 200, _VOCAB_SIZE),
            num_tokens - index,
            temperature=float(index % 3 > 0),
        )
        for index in range(_NUM_REQUESTS)
    ]
    for index, changes in enumerate(_SPECIAL.values()):
        sampling: SamplingParams = msgspec.structs.replace(requests[index].sampling, **changes)
        requests[index] = msgspec.structs.replace(requests[index], sampling=sampling)
    index = len(_SPECIAL)
    requests[index] = msgspec.structs.replace(requests[index], grammar="even")
    return requests


def _answer(
    family: str,
    bench: Bench,
    lane: LaneChoice,
    requests: Sequence[AddSequence],
    settings: SchedulerSettings,
) -> list[list[int]]:
    """The tokens of all answers: first of the plain requests alone, then of all."""
    executor = create_tiny_executor(FAMILIES[family], bench.device, lane)
    parts = [Streams(requests[len(_SPECIAL) + 1 :]), Streams(requests)]
    runs = carry(executor, parts, settings, create_matcher=EvenTokens, is_timed=False)
    executor.close()
    return [trace.token_ids for run in runs for trace in run.traces]
