"""Asks tiny-chat two hundred held-out questions and counts the right answers.

    python -m benchmarks.engine.bench_tiny_chat            # a running Hearth, from .hearth/dev.json
    python -m benchmarks.engine.bench_tiny_chat --local    # plain torch, no server

Appends the share of right answers by category to `benchmarks/results/tiny_chat.csv`, and ends with
status 1 when fewer than 90 % are right. The questions are in `tiny_chat_heldout.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.engine.tiny_chat_heldout import HeldOutItem, held_out_items
from benchmarks.harness import Figure, append_figures, describe_circumstances

MODEL = "@hearth/tiny-chat"
MAX_TOKENS = 80
BAR = 0.9
_AT_ONCE = 8


async def answers_from_hearth(items: Sequence[HeldOutItem], dev: Mapping[str, str]) -> list[str]:
    """Returns the answers of a running Hearth, eight questions at a time."""
    url = f"{dev['base_url']}/client/v4/accounts/{dev['account_id']}/ai/v1/chat/completions"
    slots = asyncio.Semaphore(_AT_ONCE)

    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {dev['api_token']}"}, timeout=120
    ) as client:

        async def answer(item: HeldOutItem) -> str:
            body = {
                "model": MODEL,
                "messages": list(item.messages),
                "temperature": 0,
                "max_tokens": MAX_TOKENS,
            }
            async with slots:
                response = await client.post(url, json=body)
            response.raise_for_status()
            return str(response.json()["choices"][0]["message"]["content"])

        return await asyncio.gather(*(answer(item) for item in items))


def answers_from_torch(items: Sequence[HeldOutItem], folder: Path) -> list[str]:
    """Returns the answers of the saved model in plain torch."""
    from tools.tiny_chat.answer import Answerer

    return Answerer.load(folder).answer_all([item.messages for item in items], MAX_TOKENS)


def count_right(items: Sequence[HeldOutItem], answers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns how many answers are right, and of how many, by category and in all."""
    verdicts = [
        (item.category, item.is_right(answer)) for item, answer in zip(items, answers, strict=True)
    ]
    counts: dict[str, tuple[int, int]] = {}
    for category in (*dict.fromkeys(item.category for item in items), "all"):
        chosen = [right for of, right in verdicts if category in (of, "all")]
        counts[category] = (sum(chosen), len(chosen))
    return counts


def report(counts: Mapping[str, tuple[int, int]], console: Console) -> None:
    """Prints the table."""
    table = Table("category", "right", "total", "share")
    for category, (right, total) in counts.items():
        table.add_row(category, str(right), str(total), f"{right / total:.1%}")
    console.print(table)


def show_wrong(items: Sequence[HeldOutItem], answers: Sequence[str], console: Console) -> None:
    """Prints each wrong answer beside what was wanted."""
    for item, answer in zip(items, answers, strict=True):
        if not item.is_right(answer):
            wanted = item.number if item.number is not None else " | ".join(item.phrases)
            console.print(f"[{item.category}] {item.messages[-1]['content']}", markup=False)
            console.print(
                f"    said:   {answer}\n    wanted: {wanted}", markup=False, highlight=False
            )


def to_figures(counts: Mapping[str, tuple[int, int]], provider: str) -> list[Figure]:
    """Returns one row per category; x is the number of questions."""
    return [
        Figure(MODEL, provider, category, "share right", total, *[right / total] * 3)
        for category, (right, total) in counts.items()
    ]


def main() -> None:
    """Reads the command line, asks, and judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--local", action="store_true", help="answer with plain torch instead of a server"
    )
    parser.add_argument("--folder", type=Path, default=Path("gpu_pool/bundled/tiny_chat"))
    parser.add_argument("--dev-file", type=Path, default=Path(".hearth/dev.json"))
    parser.add_argument("--show-failures", action="store_true")
    args = parser.parse_args()
    items = held_out_items()
    console = Console(width=140)
    started = time.monotonic()
    if args.local:
        answers = answers_from_torch(items, args.folder)
    else:
        answers = asyncio.run(answers_from_hearth(items, json.loads(args.dev_file.read_text())))
    counts = count_right(items, answers)
    report(counts, console)
    if args.show_failures:
        show_wrong(items, answers, console)
    console.print(f"{len(items)} questions in {time.monotonic() - started:.1f} s")
    provider = "torch" if args.local else "hearth"
    append_figures("tiny_chat.csv", to_figures(counts, provider), describe_circumstances(["torch"]))
    right, total = counts["all"]
    sys.exit(0 if right / total >= BAR else 1)


if __name__ == "__main__":
    main()
