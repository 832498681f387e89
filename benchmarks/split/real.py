"""What answers feel of long prompts, on real processes: two nodes alike, or one for each half.

python -m benchmarks.split.real [--shapes 50m --chunk 32 --interval 1 --words 100] [--record]

A step that computes a chunk of a prompt holds up every answer beside it; by default for a bounded
time, `whole steps` show what that is worth. An operator who minds gaps more makes steps smaller yet
(`--chunk`, tokens of a step), and then has more gaps that are a chunk long.

The same hardware both times: two nodes of one thread each behind a gateway, NIXL over TCP. The demo
model's steps take less than the way of a token to its client; `--shapes` has a larger one, of
random weights. Chats stream without a pause while documents arrive at even intervals; a gap is the
time between two tokens of a chat. Chats' own prompts are short and computed where they are
answered: the shorter the answers (`--answer`), the more gaps they are in, of either fleet. Where
the processes have fewer free cores than the two that they compute with, both halves share them and
the gaps say so. Read next: `benchmarks.split.__main__` (the simulation of real cards).
"""

import argparse
import asyncio
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.fleet.fleet import REGIONS, Fleet, Shape, run_fleet
from benchmarks.fleet.sites import Sites
from benchmarks.harness import Figure, append_figures, describe_circumstances, print_figures
from gpu_pool.model_store import BUNDLED_NAME, BUNDLED_PATH

_NODES: Final = {"weur-1": "weur", "weur-2": "weur"}
_GATEWAYS: Final = {"gw-1a": "weur"}
_ROLES: Final = {"weur-1": "decode", "weur-2": "prefill"}
_FLEETS: Final[tuple[tuple[str, dict[str, str], dict[str, int]], ...]] = (
    ("two for both, whole steps", {}, {"max_pause_ms": 0}),
    ("two for both", {}, {}),
    ("one for prompts, one for answers", _ROLES, {}),
)
"""Each fleet's name, roles, and settings of its engine."""
_ANSWER: Final = 96
_WARM_S: Final = 8.0


@dataclass
class Felt:
    """What clients saw. Units: seconds."""

    gaps: list[float] = field(default_factory=list[float])
    """Between tokens of chats."""
    waits: list[float] = field(default_factory=list[float])
    """Until a document's first token."""
    num_tokens: int = 0
    num_failed: int = 0


async def ask(fleet: Fleet, prompt: str, max_tokens: int) -> list[float]:
    """When the tokens of an answer came, the moment of asking first; empty if it failed."""
    tenant = fleet.tenants[0]
    url = f"{fleet.urls['gw-1a']}/client/v4/accounts/{tenant.account_id}/ai/run/{BUNDLED_NAME}"
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0}
    headers = {"authorization": f"Bearer {tenant.api_token}"}
    moments = [time.monotonic()]
    async with fleet.session.post(url, json=body, headers=headers) as response:
        if response.status != 200:
            return []
        lines = response.content
        moments += [time.monotonic() async for line in lines if line.startswith(b"data: {")]
    return moments


async def load(fleet: Fleet, arguments: argparse.Namespace) -> Felt:
    """Chats without a pause, and a document every so many seconds."""
    felt = Felt()
    begin_s = time.monotonic() + _WARM_S
    end_s = begin_s + arguments.seconds

    async def chat(number: int) -> None:
        turn = 0
        while time.monotonic() < end_s:
            turn += 1
            moments = await ask(fleet, f"Chat {number}, turn {turn}: go on.", arguments.answer)
            felt.num_failed += not moments
            pairs = itertools.pairwise(moments[1:])
            told = [later - sooner for sooner, later in pairs if begin_s <= later < end_s]
            felt.gaps += told
            felt.num_tokens += len(told)

    async def read_document(number: int) -> None:
        words = " ".join(f"{number} part {i % 11}" for i in range(arguments.words // 3))
        moments = await ask(fleet, f"Document {number}: {words}. Sum up.", 2)
        felt.num_failed += not moments
        if moments[1:] and moments[0] >= begin_s:
            felt.waits.append(moments[1] - moments[0])

    async with asyncio.TaskGroup() as group:
        for number in range(arguments.chats):
            group.create_task(chat(number))
        number = 0
        while time.monotonic() < end_s:
            number += 1
            group.create_task(read_document(number))
            await asyncio.sleep(arguments.interval)
    return felt


def describe(
    what: str, name: str, felt: Felt, seconds: float, ends: Mapping[str, int]
) -> list[Figure]:
    """The rows of one run."""
    cuts = statistics.quantiles(felt.gaps, n=1000, method="inclusive")
    values = {
        f"gap p{share / 10:g}": (cuts[share - 1] * 1000, "ms") for share in (500, 900, 990, 999)
    }
    if len(felt.waits) > 1:
        cuts = statistics.quantiles(felt.waits, n=100, method="inclusive")
        values |= {f"document TTFT p{p}": (cuts[p - 1] * 1000, "ms") for p in (50, 90)}
    values["tokens of chats"] = (felt.num_tokens / seconds, "1/s")
    values |= {f"hand-overs {outcome}": (num, "count") for outcome, num in ends.items()}
    values["failed"] = (felt.num_failed, "count")
    x = len(felt.gaps)
    return [
        Figure(what, name, metric, unit, x, value, value, value)
        for metric, (value, unit) in values.items()
    ]


async def measure(folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    """The fleets, one after the other, on the same load."""
    figures: list[Figure] = []
    for name, roles, pauses in _FLEETS:
        sizes = size_steps(arguments.chunk) | pauses
        steps = {one: sizes for one in _NODES if roles.get(one) != "prefill"}
        shape = Shape(_NODES, _GATEWAYS, 1, has_standby=False, roles=roles, engine=steps)
        if arguments.shapes:
            shape = replace(shape, folder=folder / "model", dtype="bfloat16")
        own = folder / f"run{len(figures)}"
        own.mkdir()
        async with run_fleet(own, Sites("", tuple(REGIONS)), shape) as fleet:
            felt = await load(fleet, arguments)
            ends = await fleet.count_hand_overs()
        figures += describe(name_load(arguments), name, felt, arguments.seconds, ends)
    return figures


def size_steps(chunk: int) -> dict[str, int]:
    """The settings of an operator who wants no step of a node that answers to be longer; 0: the
    defaults.
    """
    if not chunk:
        return {}
    return {"max_batch_tokens": chunk, "max_chunk_tokens": chunk, "max_running": min(chunk, 64)}


def write_model(folder: Path, shapes: str) -> None:
    """A random model that has the demo model's tokenizer."""
    folder.mkdir()
    write_random_llama(folder, SHAPES[shapes], torch.bfloat16)
    for path in BUNDLED_PATH.glob("tokenizer*.json"):
        shutil.copy(path, folder)


def name_load(arguments: argparse.Namespace) -> str:
    """What the rows call it: all that is not as by default."""
    words = [f"{arguments.shapes} bfloat16"] if arguments.shapes else []
    words += [f"a document every {arguments.interval:g} s"] if arguments.interval != 3.0 else []
    words += [f"of {arguments.words} words"] if arguments.words != 700 else []
    words += [f"steps of {arguments.chunk} tokens"] if arguments.chunk else []
    words += [f"{arguments.chats} chats"] if arguments.chats != 4 else []
    words += [f"answers of {arguments.answer}"] if arguments.answer != _ANSWER else []
    return ", ".join(["split, real processes", *words])


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between documents")
    parser.add_argument("--words", type=int, default=700, help="of a document")
    parser.add_argument("--chats", type=int, default=4, help="streams at once")
    parser.add_argument("--answer", type=int, default=_ANSWER, help="tokens of a chat's answer")
    parser.add_argument(
        "--chunk", type=int, default=0, help="the most tokens of a step where answers are"
    )
    parser.add_argument("--shapes", choices=list(SHAPES), help="of a random model")
    parser.add_argument("--record", action="store_true", help="append to results/split.csv")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hearth-split-"))
    if arguments.shapes:
        write_model(folder / "model", arguments.shapes)
    figures = asyncio.run(measure(folder, arguments))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print_figures(figures)
    if arguments.record:
        append_figures("split.csv", figures, describe_circumstances(("torch", "nixl-cu12")))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
