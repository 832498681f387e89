"""Requests to the fleet's two ports, as somebody outside the containers makes them."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.compose_proof.narration import ProofError

MODEL = "@hearth/tiny-chat"


@dataclass(frozen=True)
class Reply:
    """An answer in one piece."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.text)

    @property
    def region(self) -> str:
        """Where it was computed, or nothing."""
        return self.headers.get("x-hearth-region", "")

    def __str__(self) -> str:
        return f"Status {self.status}, region `{self.region}`: {self.text[:300]}"


@dataclass(frozen=True)
class Tenant:
    """An account with an API token, at the tenants' port."""

    account_id: str
    api_token: str
    port: int

    def ask(self, model: str = MODEL, **headers: str) -> Reply:
        """The answer to a short prompt; `x_hearth_regions="weur"` is a header."""
        body = {"prompt": "What is the capital of France?", "max_tokens": 8, "temperature": 0}
        with _Exchange(self.port, self.api_token, headers) as exchange:
            return exchange.send("POST", self._find_path(model), body)

    def stream(self, max_tokens: int) -> Iterator[str]:
        """The events of a long answer, after the name of the region that computes it."""
        body = {
            "prompt": "Tell me a story.",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        with _Exchange(self.port, self.api_token, {}) as exchange:
            response = exchange.begin("POST", self._find_path(MODEL), body)
            if response.status != 200:
                raise ProofError(f"a stream was refused: {response.status} {response.read()!r}")
            yield response.headers["x-hearth-region"]
            for line in response:
                if line.startswith(b"data: "):
                    yield line[6:].decode().strip()

    def read_usage(self) -> dict[str, int]:
        """Requests and tokens of the account's ledger."""
        with _Exchange(self.port, self.api_token, {}) as exchange:
            reply = exchange.send("GET", f"/client/v4/accounts/{self.account_id}/usage")
        if reply.status != 200:
            raise ProofError(f"usage cannot be read: {reply}")
        rows = reply.json["result"]
        return {
            "requests": sum(row["requests"] for row in rows),
            "tokens": sum(sum(row["tokens"].values()) for row in rows),
        }

    def _find_path(self, model: str) -> str:
        return f"/client/v4/accounts/{self.account_id}/ai/run/{model}"


def read_operators_port(port: int, credential: str, path: str) -> Reply:
    """The answer of a page of the operators' port."""
    with _Exchange(port, credential, {}) as exchange:
        return exchange.send("GET", f"/operator/v1/{path}")


def list_ready_regions(port: int, operator: str) -> set[str]:
    """Regions with a node that serves its model, as the operators' port has it."""
    return {
        node["region"]
        for node in read_operators_port(port, operator, "nodes").json["result"]
        if node["is_connected"] and any(load["is_ready"] for load in node["loads"])
    }


def poll(probe: Callable[[], bool], limit_s: float) -> bool:
    """Whether `probe` became true in time; a connection that fails counts as not yet."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if probe():
                return True
        except (OSError, http.client.HTTPException, ProofError):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


class _Exchange:
    """One connection for one request."""

    def __init__(self, port: int, credential: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._headers["Authorization"] = f"Bearer {credential}"

    def begin(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        """The answer, not read yet."""
        headers, payload = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = "application/json"
            payload = json.dumps(body)
        self._connection.request(method, path, payload, headers)
        return self._connection.getresponse()

    def send(self, method: str, path: str, body: Any = None) -> Reply:
        """The answer in one piece."""
        response = self.begin(method, path, body)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, headers, response.read().decode("utf-8", "replace"))

    def __enter__(self) -> "_Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
