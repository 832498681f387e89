"""A model behind a real gateway and node: the idle time to the first token, and the CPU of a load.

Clients speak HTTP and read the stream as anybody's would. Read next: `served_hearth`.
"""

import asyncio
import itertools
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.served_hearth import ServedHearth, serve
from benchmarks.gpu.shapes import LLAMA_8B
from benchmarks.gpu.start import require_room
from benchmarks.harness import Figure, summarise

_CONTEXT: Final = 4096
_KV_BYTES: Final = 28 << 30
_MODEL_BYTES: Final = 18 << 30
_REFERENCE_RATE: Final = 8000
"""Output tokens a second that the CPU of gateway and node is told for."""
_PROMPT_TOKENS, _ANSWER_TOKENS = 233, 221
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz "


@dataclass(slots=True)
class Answer:
    """What a client saw. Units: seconds."""

    began_s: float
    token_s: list[float] = field(default_factory=list[float])
    """When each piece of text came."""
    num_tokens: int = 0
    """As the usage at the end says."""


def measure_http(bench: Bench) -> list[Figure]:
    """Idle first tokens for prompts of 128 and 1,024 tokens, then 200 streams."""
    require_room(bench, _MODEL_BYTES)
    num_streams = bench.pick(200, 8)
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        shapes = bench.find_shapes(LLAMA_8B)
        context_window = bench.pick(_CONTEXT, 2048)
        kv_bytes = bench.pick(_KV_BYTES, 64 << 20)
        with serve(bench, Path(folder), shapes, context_window, 256, kv_bytes) as hearth:
            return asyncio.run(_measure(bench, hearth, num_streams))


async def _measure(bench: Bench, hearth: ServedHearth, num_streams: int) -> list[Figure]:
    """All figures of one start."""
    what = f"{LLAMA_8B} over HTTP"
    figures = [summarise(what, OURS, "start to ready", "s", 1, [hearth.ready_s])]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for length in (128, 1024):
            answers = [
                await ask(session, hearth, length, 8, number) for number in range(bench.pick(25, 4))
            ]
            firsts = [1000 * (answer.token_s[0] - answer.began_s) for answer in answers[3:]]
            figures.append(summarise(f"{what}, idle", OURS, "first token", "ms", length, firsts))
        figures += await _measure_load(bench, hearth, session, num_streams)
    return figures


async def _measure_load(
    bench: Bench, hearth: ServedHearth, session: aiohttp.ClientSession, num_streams: int
) -> list[Figure]:
    """So many streams without a pause: what they get, and what CPU that takes."""
    seconds, warm_s = bench.pick((25.0, 6.0), (3.0, 1.0))
    numbers, answers = itertools.count(1000), list[Answer]()
    end_s = time.perf_counter() + warm_s + seconds

    async def stream() -> None:
        while time.perf_counter() < end_s:
            num_tokens = bench.pick(_ANSWER_TOKENS, 16)
            length = bench.pick(_PROMPT_TOKENS, 64)
            answers.append(await ask(session, hearth, length, num_tokens, next(numbers)))

    async def watch() -> tuple[float, dict[str, float]]:
        await asyncio.sleep(warm_s)
        began_s = time.perf_counter()
        before = {name: hearth.measure_cpu_s(name) for name in hearth.pids}
        await asyncio.sleep(end_s - time.perf_counter())
        spent = {name: hearth.measure_cpu_s(name) - before[name] for name in hearth.pids}
        return began_s, spent

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    began_s, spent = await watching
    # Tokens are counted when their text comes; answers say how many tokens that was.
    num_tokens = sum(
        answer.num_tokens
        * sum(began_s <= at_s < end_s for at_s in answer.token_s)
        / len(answer.token_s)
        for answer in answers
    )
    num_over = sum(began_s <= answer.token_s[-1] < end_s for answer in answers)
    rate = num_tokens / (end_s - began_s)
    firsts = [1000 * (answer.token_s[0] - answer.began_s) for answer in answers]
    gaps = [1000 * (b - a) for answer in answers for a, b in itertools.pairwise(answer.token_s)]
    scale = _REFERENCE_RATE / num_tokens
    what = f"{LLAMA_8B} over HTTP, 200 streams"
    both = sum(spent.values())
    return [
        summarise(what, OURS, "output", "tok/s", num_streams, [rate]),
        summarise(what, OURS, "requests", "1/s", num_streams, [num_over / (end_s - began_s)]),
        summarise(what, OURS, "first token", "ms", num_streams, firsts),
        summarise(what, OURS, "gap", "ms", num_streams, gaps),
        summarise(
            what,
            OURS,
            "gateway's CPU at 8k tok/s",
            "cores",
            num_streams,
            [spent["gateway"] * scale],
        ),
        summarise(what, OURS, "CPU at 8k tok/s", "cores", num_streams, [both * scale]),
    ]


async def ask(
    session: aiohttp.ClientSession,
    hearth: ServedHearth,
    num_prompt_tokens: int,
    num_tokens: int,
    number: int,
) -> Answer:
    """One streamed answer. Raises: `AssertionError` for any other outcome."""
    start = f"{number} "
    text = start + "".join(
        _LETTERS[(number + i * (1 + number % 5)) % len(_LETTERS)]
        for i in range(num_prompt_tokens - len(start))
    )
    body: dict[str, Any] = {"prompt": text, "raw": True, "max_tokens": num_tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0.6, "seed": number + 1}
    headers = {"authorization": f"Bearer {hearth.api_token}"}
    answer = Answer(time.perf_counter())
    async with session.post(hearth.run_url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            if event.get("response"):
                answer.token_s.append(time.perf_counter())
            if event.get("usage"):
                answer.num_tokens = event["usage"]["completion_tokens"]
    assert answer.num_tokens == num_tokens, f"{answer.num_tokens} of {num_tokens} tokens came"
    return answer
