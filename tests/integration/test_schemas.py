"""Generated JSON Schemas and the demo model at temperature 1: it finishes, and what it says fits.

A small part of `benchmarks/engine/bench_schemas.py`, which asks 300 and counts.
"""

import asyncio
import json
from typing import Any

from jsonschema import Draft202012Validator

from benchmarks.engine.generated_schemas import list_schemas
from tests.integration.account_client import MODEL, AccountClient

SEED = 5
COUNT = 12


async def ask(account: AccountClient, schema: str, seed: int) -> dict[str, Any]:
    """The choice that answers under `schema`."""
    response = await account.http.post(
        "v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": "Give me an example."}],
            "temperature": 1,
            "seed": seed,
            "max_tokens": 400,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": json.loads(schema)},
            },
        },
    )
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


async def test_most_answers_under_a_schema_end_and_each_that_ends_validates(
    account: AccountClient,
) -> None:
    schemas = list_schemas(SEED, COUNT)
    choices = await asyncio.gather(
        *(ask(account, schema, seed) for seed, schema in enumerate(schemas))
    )
    pairs = zip(schemas, choices, strict=True)
    finished = [
        (json.loads(schema), json.loads(choice["message"]["content"]))
        for schema, choice in pairs
        if choice["finish_reason"] == "stop"
    ]
    assert len(finished) >= COUNT * 3 // 4
    for schema, answer in finished:
        assert not list(Draft202012Validator(schema).iter_errors(answer)), (schema, answer)
