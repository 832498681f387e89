"""Answers of tiny-chat under generated JSON Schemas, at temperature 1, from a running Hearth.

    make run                                          # in a first terminal
    make bench WHAT=engine.bench_schemas              # in a second one

Every finished answer must validate and nine of ten must finish; a keyword that cannot be enforced
must be refused by its name; hostile schemas must end, in an answer or a refusal, while plain
requests are served. Appends the shares and times to `benchmarks/results/schemas.csv`, and ends with
status 1 when one of these does not hold. The schemas are those of `generated_schemas`.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from jsonschema import Draft202012Validator
from rich.console import Console

from benchmarks.engine.generated_schemas import list_schemas
from benchmarks.harness import Figure, append_figures, describe_circumstances, summarise

MODEL: Final = "@hearth/tiny-chat"
SEED: Final = 11
BAR: Final = 0.9
AT_ONCE: Final = 8
HOSTILE_LIMIT_S: Final = 120.0
"""Far above what any takes, on a machine that does other things."""
UNSUPPORTED: Final[Mapping[str, Any]] = {
    "not": {"type": "null"},
    "if": {"type": "string"},
    "contains": {"type": "null"},
    "uniqueItems": True,
    "propertyNames": {"pattern": "a"},
    "dependentRequired": {"a": ["b"]},
    "unevaluatedProperties": False,
    "$dynamicRef": "#a",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what came of it. Units: seconds."""

    status: int
    reason: str
    text: str
    seconds: float


def list_hostile() -> dict[str, Any]:
    """Schemas that cost more than they say."""
    deep: Any = {"type": "string"}
    for _ in range(10_000):
        deep = {"type": "array", "items": deep}
    return {
        "a circle of references": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        "a tree without leaves": {
            "type": "object",
            "properties": {"a": {"$ref": "#"}},
            "required": ["a"],
        },
        "a hundred thousand values": {"enum": [f"value {number}" for number in range(100_000)]},
        "nested quantifiers": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"},
        "an exponential pattern": {"type": "string", "pattern": "(x+x+)+y"},
        "ten thousand deep": deep,
        "thousands of alternatives": {
            "anyOf": [{"type": "string", "pattern": f"a{{{n}}}b*"} for n in range(1, 3000)]
        },
    }


def encode_schema(schema: Any) -> str:
    """JSON of a schema that may be nested beyond what the encoder can follow."""
    pieces: list[str] = []
    depth = 0
    while isinstance(schema, dict) and schema.keys() == {"type", "items"}:
        pieces.append('{"type":"array","items":')
        schema, depth = schema["items"], depth + 1
    return "".join(pieces) + json.dumps(schema) + "}" * depth


class Hearth:
    """A running one."""

    def __init__(self, dev: Mapping[str, str], client: httpx.AsyncClient) -> None:
        """`dev` is what `.hearth/dev.json` says."""
        self._url = (
            f"{dev['base_url']}/client/v4/accounts/{dev['account_id']}/ai/v1/chat/completions"
        )
        self._client = client
        self._places = asyncio.Semaphore(AT_ONCE)

    async def ask(self, schema: str | None, seed: int, max_tokens: int) -> Asked:
        """An answer under `schema`, or a plain one."""
        head = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Give me an example."}],
            "temperature": 1,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        body = json.dumps(head)
        if schema is not None:
            form = f'{{"type":"json_schema","json_schema":{{"name":"a","schema":{schema}}}}}'
            body = f'{body[:-1]}, "response_format": {form}}}'
        async with self._places:
            began_s = time.monotonic()
            response = await self._client.post(self._url, content=body)
            took_s = time.monotonic() - began_s
        answer = response.json()
        if response.status_code != 200:
            message = str(answer["error"]["message"])
            return Asked(response.status_code, "refused", message, took_s)
        choice = answer["choices"][0]
        return Asked(200, choice["finish_reason"], choice["message"]["content"] or "", took_s)


async def try_generated(hearth: Hearth, count: int, max_tokens: int, out: Console) -> list[Figure]:
    """The figures of `count` generated schemas; says what is wrong."""
    schemas = list_schemas(SEED, count)
    asked = await asyncio.gather(
        *(hearth.ask(schema, seed, max_tokens) for seed, schema in enumerate(schemas))
    )
    ends = Counter(one.reason for one in asked)
    pairs = zip(schemas, asked, strict=True)
    finished = [(schema, one) for schema, one in pairs if one.reason == "stop"]
    num_valid = sum(_validates(schema, one.text, out) for schema, one in finished)
    out.print(f"{count} schemas: {dict(ends)}; {num_valid} of {len(finished)} finished ones valid")
    for one in asked:
        if one.reason == "refused":
            out.print(f"  refused with {one.status}: {one.text[:160]}", markup=False)
    share, valid = len(finished) / count, num_valid / max(1, len(finished))
    return [
        Figure("generated", "hearth", "finished", "share", count, share, share, share),
        Figure("generated", "hearth", "valid", "share", len(finished), valid, valid, valid),
        summarise("generated", "hearth", "answer", "s", count, [one.seconds for one in asked]),
    ]


async def try_unsupported(hearth: Hearth, out: Console) -> int:
    """How many keywords were not refused by name."""
    num_wrong = 0
    for keyword, content in UNSUPPORTED.items():
        asked = await hearth.ask(json.dumps({"type": "array", keyword: content}), 1, 8)
        is_right = asked.status == 400 and f"`{keyword}`" in asked.text
        num_wrong += not is_right
        if not is_right:
            out.print(f"{keyword}: {asked.status} {asked.text[:160]}", markup=False)
    out.print(f"{len(UNSUPPORTED) - num_wrong} of {len(UNSUPPORTED)} keywords refused by name")
    return num_wrong


async def try_hostile(hearth: Hearth, out: Console) -> tuple[int, list[Figure]]:
    """How many hostile schemas did harm, and how long each took beside plain requests."""
    num_wrong = 0
    figures: list[Figure] = []
    for name, schema in list_hostile().items():
        hostile = asyncio.ensure_future(hearth.ask(encode_schema(schema), 1, 32))
        plain = [await hearth.ask(None, seed, 8) for seed in range(3)]
        try:
            asked = await asyncio.wait_for(hostile, HOSTILE_LIMIT_S)
        except TimeoutError:
            asked = Asked(0, "no end", "", HOSTILE_LIMIT_S)
        is_right = asked.status in (200, 400, 413) and all(one.status == 200 for one in plain)
        num_wrong += not is_right
        plain_s = max(one.seconds for one in plain)
        out.print(
            f"{name}: {asked.status} after {asked.seconds:.2f} s ({asked.reason}: "
            f"{asked.text[:70]!r}); plain requests beside it at most {plain_s:.2f} s",
            markup=False,
        )
        figures.append(summarise(name, "hearth", "hostile", "s", 1, [asked.seconds]))
    return num_wrong, figures


def _validates(schema: str, text: str, out: Console) -> bool:
    """True when a finished answer is what its schema says."""
    try:
        errors = list(Draft202012Validator(json.loads(schema)).iter_errors(json.loads(text)))
    except ValueError:
        errors = ["no JSON"]
    if errors:
        out.print(f"does not validate: {schema}\n  {text}\n  {errors[0]}", markup=False)
    return not errors


async def run(arguments: argparse.Namespace, out: Console) -> int:
    """The exit status."""
    dev = json.loads(arguments.dev_file.read_text())
    headers = {"Authorization": f"Bearer {dev['api_token']}"}
    async with httpx.AsyncClient(headers=headers, timeout=600) as client:
        hearth = Hearth(dev, client)
        figures = await try_generated(hearth, arguments.count, arguments.max_tokens, out)
        num_wrong = await try_unsupported(hearth, out)
        num_harmful, times = await try_hostile(hearth, out)
    append_figures(
        "schemas.csv", [*figures, *times], describe_circumstances(["torch", "llguidance"])
    )
    return _judge(figures, num_wrong + num_harmful)


def _judge(figures: Sequence[Figure], num_wrong: int) -> int:
    """0 when all that is promised holds."""
    share, valid = figures[0].p50, figures[1].p50
    return 0 if share >= BAR and valid == 1 and not num_wrong else 1


def main() -> None:
    """Reads the command line and asks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--dev-file", type=Path, default=Path(".hearth/dev.json"))
    sys.exit(asyncio.run(run(parser.parse_args(), Console(width=140))))


if __name__ == "__main__":
    main()
