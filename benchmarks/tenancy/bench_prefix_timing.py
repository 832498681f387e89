"""Whether an account can tell by the clock what another account has asked.

    python -m benchmarks.tenancy.bench_prefix_timing --folder /tmp/timing
    python -m benchmarks.tenancy.bench_prefix_timing --folder /tmp/timing --trials 1000 --record

A gateway and a node with the demo model, as `hearth dev` sets them up. In each trial the owner asks
a prompt that nobody has asked before. Then a stranger asks the same prompt and one that is as new,
the owner both kinds as well, in an order that is drawn. What is told apart is how long answers of
one token took, connection and all: as the share of pairs in which the known prompt was the quicker
one, counted over all pairs (AUC). A half is chance; the owner's own is the control. `error` is what
an AUC of pure chance strays by (a standard deviation). The prober has the machine for itself, which
nobody has in earnest. Rows go to `results/tenancy_timing.csv` with `--record`.
"""

import argparse
import asyncio
import http.client
import json
import math
import random
import subprocess
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.engine.bench_first_requests import wait_until_ready
from benchmarks.engine.cpu_servers import Launch, launch_hearth, run
from benchmarks.gateway.bench_processes import python
from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.model_store import BUNDLED_PATH

OWNER, STRANGER = "owner", "stranger"
KNOWN, NEW = "known", "new"
WORDS = ("the", "light", "of", "small", "fires", "kept", "every", "long", "night", "while", "they")


class Client:
    """An account's connection, kept open."""

    def __init__(self, launch: Launch, account_id: str, api_token: str) -> None:
        """Nothing is connected before the first question."""
        parts = urlsplit(launch.url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port)
        self._path = f"/client/v4/accounts/{account_id}/ai/v1/completions"
        self._headers = {
            "authorization": f"Bearer {api_token}",
            "content-type": "application/json",
        }
        self._model = launch.model

    def ask(self, prompt: str) -> tuple[float, int]:
        """Milliseconds until the answer of one token was there, and the tokens it found cached."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        encoded = json.dumps(body)
        begun_s = time.perf_counter()
        self._connection.request("POST", self._path, encoded, self._headers)
        reply = self._connection.getresponse()
        content = reply.read()
        taken_ms = 1e3 * (time.perf_counter() - begun_s)
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {content.decode()}")
        details = json.loads(content)["usage"].get("prompt_tokens_details") or {}
        return taken_ms, details.get("cached_tokens") or 0


def create_stranger(folder: Path) -> tuple[str, str]:
    """A second account of the installation in `folder`, and a token of its."""
    config = ("--config", str(folder / "hearth" / "gateway.toml"), "--json")

    def call(*words: str) -> dict[str, str]:
        command = python("cli", *words, *config)
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    account_id = call("accounts", "create", STRANGER)["account_id"]
    return account_id, call("tokens", "create", account_id, "--name", STRANGER)["value"]


def draw_prompt(draw: random.Random, num_words: int) -> str:
    """A prompt that nobody has asked: its first words are a number of its own."""
    numbers = " ".join(str(draw.randrange(10)) for _ in range(24))
    return f"{numbers} {' '.join(draw.choice(WORDS) for _ in range(num_words))}"


def compute_auc(quick: Sequence[float], slow: Sequence[float]) -> float:
    """The share of all pairs in which the first is the smaller one; equal ones count half."""
    ordered = sorted(slow)
    wins = 0.0
    for value in quick:
        above = len(ordered) - bisect_right(ordered, value)
        equal = bisect_right(ordered, value) - bisect_left(ordered, value)
        wins += above + equal / 2
    return wins / (len(quick) * len(slow))


def measure(
    clients: dict[str, Client], trials: int, num_words: int, draw: random.Random
) -> list[Figure]:
    """All trials. Raises: `RuntimeError` where the cache did not do as the test assumes."""
    times_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(trials):
        asked = draw_prompt(draw, num_words)
        clients[OWNER].ask(asked)
        questions = [
            (who, kind, asked if kind is KNOWN else draw_prompt(draw, num_words))
            for who in (OWNER, STRANGER)
            for kind in (KNOWN, NEW)
        ]
        draw.shuffle(questions)
        for who, kind, prompt in questions:
            taken_ms, num_cached = clients[who].ask(prompt)
            if (num_cached > 0) != (who is OWNER and kind is KNOWN):
                raise RuntimeError(f"{who}, {kind}: {num_cached} tokens were cached")
            times_ms[who, kind].append(taken_ms)
        if number % 50 == 49:
            print(f"{number + 1} of {trials} trials", flush=True)
    what = f"prompts of {num_words} words, {trials} trials"
    error = math.sqrt((2 * trials + 1) / (12 * trials * trials))
    figures = [
        summarise(what, f"{who}, {kind}", "answer", "ms", num_words, taken_ms)
        for (who, kind), taken_ms in sorted(times_ms.items())
    ]
    for who in (STRANGER, OWNER):
        auc = compute_auc(times_ms[who, KNOWN], times_ms[who, NEW])
        figures.append(summarise(what, who, "AUC", "share", num_words, [auc]))
    return [*figures, summarise(what, "chance", "error", "share", num_words, [error])]


def main() -> None:
    """Starts both processes, and prints what the clock told."""
    parser = argparse.ArgumentParser(
        prog="bench_prefix_timing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="for settings and keys")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--words", type=int, default=300, help="of a prompt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="append to results/")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    launch = launch_hearth(folder, 8, None, BUNDLED_PATH)
    with run(launch, folder / "log"):
        asyncio.run(wait_until_ready(launch))
        owner_id = launch.prefix.split("/")[4]
        clients = {
            OWNER: Client(launch, owner_id, launch.api_token),
            STRANGER: Client(launch, *create_stranger(folder)),
        }
        draw = random.Random(options.seed)
        figures = measure(clients, options.trials, options.words, draw)
    print_figures(figures)
    if options.record:
        append_figures("tenancy_timing.csv", figures, describe_circumstances(("torch",)))


if __name__ == "__main__":
    main()
