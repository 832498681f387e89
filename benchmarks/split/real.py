"""What answers feel of long prompts, on real processes: two nodes alike, or one for each half.

python -m benchmarks.split.real [--seconds 30] [--record]

The same hardware both times: two nodes of one thread each behind a gateway, the demo model, NIXL
over TCP. Chats stream without a pause while documents arrive at even intervals; a gap is the time
between two tokens of a chat. Where the processes have fewer free cores than the two that they
compute with, both halves share them and the gaps say so. Read next: `benchmarks.split.__main__`
(the simulation of real cards).
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet.fleet import REGIONS, Fleet, Shape, run_fleet
from benchmarks.fleet.sites import Sites
from benchmarks.harness import Figure, append_figures, describe_circumstances, print_figures
from gpu_pool.model_store import BUNDLED_NAME

_NODES: Final = {"weur-1": "weur", "weur-2": "weur"}
_GATEWAYS: Final = {"gw-1a": "weur"}
_ROLES: Final = {"weur-1": "decode", "weur-2": "prefill"}
_NUM_CHATS: Final = 4
_CHAT_TOKENS: Final = 96
_DOCUMENT_WORDS: Final = 700
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


async def load(fleet: Fleet, seconds: float, interval_s: float) -> Felt:
    """Chats without a pause, and a document every `interval_s`."""
    felt = Felt()
    begin_s = time.monotonic() + _WARM_S
    end_s = begin_s + seconds

    async def chat(number: int) -> None:
        turn = 0
        while time.monotonic() < end_s:
            turn += 1
            moments = await ask(fleet, f"Chat {number}, turn {turn}: go on.", _CHAT_TOKENS)
            felt.num_failed += not moments
            pairs = itertools.pairwise(moments[1:])
            told = [later - sooner for sooner, later in pairs if begin_s <= later < end_s]
            felt.gaps += told
            felt.num_tokens += len(told)

    async def read_document(number: int) -> None:
        words = " ".join(f"{number} part {i % 11}" for i in range(_DOCUMENT_WORDS // 3))
        moments = await ask(fleet, f"Document {number}: {words}. Sum up.", 2)
        felt.num_failed += not moments
        if moments[1:] and moments[0] >= begin_s:
            felt.waits.append(moments[1] - moments[0])

    async with asyncio.TaskGroup() as group:
        for number in range(_NUM_CHATS):
            group.create_task(chat(number))
        number = 0
        while time.monotonic() < end_s:
            number += 1
            group.create_task(read_document(number))
            await asyncio.sleep(interval_s)
    return felt


def describe(name: str, felt: Felt, seconds: float, ends: Mapping[str, int]) -> list[Figure]:
    """The rows of one run."""
    cuts = statistics.quantiles(felt.gaps, n=100, method="inclusive")
    values = {f"gap p{percent}": (cuts[percent - 1] * 1000, "ms") for percent in (50, 90, 99)}
    if len(felt.waits) > 1:
        cuts = statistics.quantiles(felt.waits, n=100, method="inclusive")
        values |= {f"document TTFT p{p}": (cuts[p - 1] * 1000, "ms") for p in (50, 90)}
    values["tokens of chats"] = (felt.num_tokens / seconds, "1/s")
    values |= {f"hand-overs {outcome}": (num, "count") for outcome, num in ends.items()}
    values["failed"] = (felt.num_failed, "count")
    x = len(felt.gaps)
    return [
        Figure("split, real processes", name, metric, unit, x, value, value, value)
        for metric, (value, unit) in values.items()
    ]


async def measure(folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    """Both fleets, one after the other, on the same load."""
    figures: list[Figure] = []
    for name, roles in (("two for both", {}), ("one for prompts, one for answers", _ROLES)):
        shape = Shape(_NODES, _GATEWAYS, 1, has_standby=False, roles=roles)
        own = folder / f"run{len(figures)}"
        own.mkdir()
        async with run_fleet(own, Sites("", tuple(REGIONS)), shape) as fleet:
            felt = await load(fleet, arguments.seconds, arguments.interval)
            ends = await fleet.count_hand_overs()
        figures += describe(name, felt, arguments.seconds, ends)
    return figures


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between documents")
    parser.add_argument("--record", action="store_true", help="append to results/split.csv")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hearth-split-"))
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
