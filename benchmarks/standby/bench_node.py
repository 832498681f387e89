"""Plays a trace of many models on a real node whose memory holds three of them.

Every model has weights of its own. First each answers alone what it will be asked; then requests
come in bursts, models by Zipf's law, and every answer is compared with the lone one, token by
token.
Time to the first token is told by the tier that the model was on when the request came.

examples:
  make bench WHAT=standby.bench_node                        # 13 models of over 200 MB, 10 minutes
  make bench WHAT=standby.bench_node ARGS=--planner         # with hot standby's planner beside it
  python -m benchmarks.standby.bench_node --size small --on-device 3.9 --seconds 20 --no-record
"""

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.progress import Progress

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from benchmarks.standby.many_models import SIZES, CrowdedNode, run_crowded_node, write_models
from benchmarks.standby.planner_beside import PlannerBeside, run_planner
from benchmarks.standby.traces import NODE_SHAPE, SimArrival, SimModel, draw_trace
from contracts.codec import encode_request
from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, RegionId, create_request_id
from contracts.inference import Delta, Failed, Finished, GenerateRequest, SamplingParams, TextPrompt

NUM_PROMPTS = 4
NUM_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request. Units: seconds."""

    token_ids: tuple[int, ...]
    first_s: float
    error: str | None


async def ask(node: CrowdedNode, model: ModelName, prompt: int) -> Answer:
    """One request from its beginning to its end."""
    began_s = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    grant = Grant(
        request_id=create_request_id(now_ms, time.time_ns()),
        attempt=0,
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        model=model,
        regions=None,
        priority=0,
        retention=RetentionClass.STANDARD,
        deadline_unix_ms=now_ms + 120_000,
        max_total_tokens=4096,
    )
    request = GenerateRequest(
        model=model,
        prompt=TextPrompt(text=f"Tell me of the number {prompt}."),
        sampling=SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True),
    )
    stream = node.links.open(node.node_id, grant, encode_request(request))
    token_ids: list[int] = []
    first_s, error = 0.0, None
    while not stream.is_over or not token_ids:
        for event in await stream.take():
            if isinstance(event, Delta):
                first_s = first_s or time.monotonic() - began_s
                token_ids += event.token_ids
            elif isinstance(event, Failed):
                error = event.error.code
            elif isinstance(event, Finished):
                break
        if error is not None:
            break
    return Answer(tuple(token_ids), first_s, error)


@dataclass(slots=True)
class Tally:
    """What the trace has brought."""

    first_s: dict[str, list[float]]
    """By where the model was when the request came, as the node had said last."""
    num_requests: int = 0
    num_wrong: int = 0
    num_failed: int = 0


async def play(
    node: CrowdedNode,
    trace: list[SimArrival],
    lone: dict[tuple[ModelName, int], tuple[int, ...]],
    seconds: float,
    planner: PlannerBeside | None,
) -> Tally:
    """Sends each request at its time, whatever became of those before."""
    tally = Tally(defaultdict(list))
    began_s = time.monotonic()

    async def send(arrival: SimArrival, number: int) -> None:
        await asyncio.sleep(max(0.0, began_s + arrival.at_s - time.monotonic()))
        if planner is not None:
            planner.note(arrival.model)
        placement = node.find(arrival.model)
        where = "on its way" if placement.is_moving else f"on {placement.tier}"
        prompt = number % NUM_PROMPTS
        answer = await ask(node, arrival.model, prompt)
        tally.num_requests += 1
        if answer.error is not None:
            tally.num_failed += 1
        else:
            tally.num_wrong += answer.token_ids != lone[arrival.model, prompt]
            tally.first_s[where].append(answer.first_s)

    with Progress(transient=True) as progress:
        task = progress.add_task(f"{len(trace)} requests", total=seconds)
        sending = asyncio.gather(*(send(arrival, n) for n, arrival in enumerate(trace)))
        while not sending.done():
            await asyncio.wait([sending], timeout=1)
            progress.update(task, completed=min(time.monotonic() - began_s, seconds))
        sending.result()
    return tally


async def measure(options: argparse.Namespace) -> list[Figure]:
    """The figures of one run; raises where an answer was lost or wrong."""
    models = write_models(options.folder, options.size, options.models)
    drawn = [SimModel(name, 1) for name in models]
    trace = draw_trace(
        options.seed,
        drawn,
        [RegionId("local")],
        replace(NODE_SHAPE, duration_s=options.seconds, mean_pause_s=options.pause),
    )
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        async with run_crowded_node(Path(name), models, options.on_device, options.in_host) as node:
            lone: dict[tuple[ModelName, int], tuple[int, ...]] = {}
            for model in models:
                for prompt in range(NUM_PROMPTS):
                    answer = await ask(node, model, prompt)
                    assert answer.error is None, answer.error
                    lone[model, prompt] = answer.token_ids
            assert len({lone[model, 0] for model in models}) > 1, "the models answer alike"
            before = sum(node.find(model).num_wakes for model in models)
            async with run_planner(node) if options.planner else nullcontext() as planner:
                tally = await play(node, trace, lone, options.seconds, planner)
            await asyncio.sleep(1.5)  # the next report
            num_wakes = sum(node.find(model).num_wakes for model in models) - before
    assert not tally.num_failed, f"{tally.num_failed} of {tally.num_requests} requests failed"
    assert not tally.num_wrong, f"{tally.num_wrong} of {tally.num_requests} answers are wrong"
    what = f"{options.models} models, {options.on_device:g} fit, {options.in_host:g} sleep"
    if options.pause != NODE_SHAPE.mean_pause_s:
        what += f", a burst every {options.pause:g} s"
    who = "hearth, planner beside" if options.planner else "hearth"
    everything = [time for times in tally.first_s.values() for time in times]
    tally.first_s["wherever"] = everything
    figures = [
        summarise(what, who, f"first token, model {where}", "s", len(times), times)
        for where, times in tally.first_s.items()
    ]
    per_minute = num_wakes / options.seconds * 60
    figures += [
        summarise(what, who, "wakes per minute", "1/min", tally.num_requests, [per_minute]),
        summarise(what, who, "first token, mean", "s", tally.num_requests, [fmean(everything)]),
        *(
            summarise(what, who, f"first token p90, model {where}", "s", len(times), [p90])
            for where, times in tally.first_s.items()
            for p90 in [sorted(times)[int(0.9 * len(times))]]
        ),
    ]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="200mb")
    parser.add_argument("--models", type=int, default=13)
    parser.add_argument(
        "--on-device", type=float, default=3.3, help="models that fit on the device"
    )
    parser.add_argument("--in-host", type=float, default=6.6, help="models that fit in the host")
    parser.add_argument("--seconds", type=float, default=NODE_SHAPE.duration_s)
    parser.add_argument(
        "--pause", type=float, default=NODE_SHAPE.mean_pause_s, help="between bursts"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planner", action="store_true", help="hot standby plans beside the node")
    parser.add_argument("--no-record", action="store_true", help="leave results/ alone")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(".cache/bench-models"),
        help="where the models are written, once",
    )
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    print_figures(figures)
    if not options.no_record:
        path = append_figures("standby_node.csv", figures, describe_circumstances(["torch"]))
        print(f"appended to {path}")


if __name__ == "__main__":
    main()
