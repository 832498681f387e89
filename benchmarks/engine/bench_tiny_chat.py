"""Asks tiny-chat two hundred held-out questions and counts the right answers.

    python -m benchmarks.engine.bench_tiny_chat            # a running Hearth, from .hearth/dev.json
    python -m benchmarks.engine.bench_tiny_chat --local    # plain torch, no server

Ends with status 1 when fewer than 90 % are right. The questions are in `tiny_chat_heldout.py`.
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


def report(
    items: Sequence[HeldOutItem], answers: Sequence[str], console: Console, *, show_failures: bool
) -> float:
    """Prints the table, and on request each wrong answer; returns the share of right ones."""
    verdicts = [
        (item, item.is_right(answer), answer) for item, answer in zip(items, answers, strict=True)
    ]
    table = Table("category", "right", "total", "share")
    for category in (*dict.fromkeys(item.category for item in items), "all"):
        chosen = [right for item, right, _ in verdicts if category in (item.category, "all")]
        table.add_row(
            category, str(sum(chosen)), str(len(chosen)), f"{sum(chosen) / len(chosen):.1%}"
        )
    console.print(table)
    if show_failures:
        for item, right, answer in verdicts:
            if not right:
                wanted = item.number if item.number is not None else " | ".join(item.phrases)
                console.print(f"[{item.category}] {item.messages[-1]['content']}", markup=False)
                console.print(
                    f"    said:   {answer}\n    wanted: {wanted}", markup=False, highlight=False
                )
    return sum(right for _, right, _ in verdicts) / len(verdicts)


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
    share = report(items, answers, console, show_failures=args.show_failures)
    console.print(f"{len(items)} questions in {time.monotonic() - started:.1f} s")
    sys.exit(0 if share >= BAR else 1)


if __name__ == "__main__":
    main()
