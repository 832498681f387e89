"""One account's view of a running Hearth: plain HTTP, native and OpenAI routes.

For tests that look at the bytes; those with real clients are in `test_clients`.
"""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx

MODEL = "@hearth/tiny-chat"
GREEDY: dict[str, Any] = {"temperature": 0}


class AccountClient:
    """Asks as one account. Used as an async context manager."""

    def __init__(self, base_url: str, account_id: str, api_token: str) -> None:
        """`base_url` is an origin."""
        self.http = httpx.AsyncClient(
            base_url=f"{base_url}/client/v4/accounts/{account_id}/ai/",
            headers={"Authorization": f"Bearer {api_token}"},
            timeout=httpx.Timeout(90, pool=None),
            limits=httpx.Limits(max_connections=None),
        )

    async def __aenter__(self) -> "AccountClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def run(self, prompt: str, **options: Any) -> dict[str, Any]:
        """`result` of the native route."""
        response = await self.http.post(
            f"run/{quote(MODEL)}", json={"prompt": prompt, **GREEDY, **options}
        )
        assert response.status_code == 200, response.text
        return response.json()["result"]

    async def stream(self, prompt: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Events of the native route. A stream without `[DONE]` ends with `{"closed": True}`."""
        body = {"prompt": prompt, "stream": True, **GREEDY, **options}
        async with self.http.stream("POST", f"run/{quote(MODEL)}", json=body) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line and not line.startswith(":"):  # pings are comments
                    yield json.loads(line.removeprefix("data: "))
        yield {"closed": True}

    async def stream_text(self, prompt: str, **options: Any) -> str:
        """The whole text of a stream that ends as it should."""
        events = [event async for event in self.stream(prompt, **options)]
        assert not any("errors" in event or "closed" in event for event in events), events[-2:]
        return "".join(event.get("response") or "" for event in events)


def read_cached_tokens(usage: dict[str, Any]) -> int:
    """Prompt tokens that came from the prefix cache."""
    return usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
