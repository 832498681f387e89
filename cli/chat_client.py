"""The OpenAI route as `hearth chat` uses it: a list of turns in, pieces of text out.

Owns the HTTP of one client; must not know the terminal. Read next: `gateway.api`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cli.terminal import CommandFailed, fail_to_connect

_CONNECT_TIMEOUT_S: Final = 5.0
_DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a conversation."""

    role: str
    content: str


class ChatClient:
    """Talks to one account of one gateway. Used as a context manager."""

    def __init__(self, base_url: str, account_id: str, api_token: str) -> None:
        """`base_url` is an origin, with or without the path `/client/v4`."""
        import httpx  # here, for it takes a third of the time that `hearth --help` may take

        origin = base_url.rstrip("/").removesuffix("/client/v4")
        self._origin = origin
        self._connection_errors = (httpx.HTTPError, httpx.InvalidURL)
        self._http = httpx.Client(
            base_url=f"{origin}/client/v4/accounts/{account_id}/ai/v1/",
            headers={"Authorization": f"Bearer {api_token}"},
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        )

    def __enter__(self) -> "ChatClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def find_default_model(self) -> str:
        """The first model on offer. Raises: `CommandFailed`."""
        try:
            response = self._http.get("models")
        except self._connection_errors as error:
            raise fail_to_connect(self._origin, error) from error
        _refuse_error(response.status_code, response.content)
        names = [model["id"] for model in response.json()["data"]]
        if not names:
            raise CommandFailed("No model is on offer.")
        return names[0]

    def stream_answer(self, model: str, turns: Sequence[ChatTurn]) -> Iterator[str]:
        """Pieces of the answer. Leaving the iteration early cancels it on the server.

        Raises: `CommandFailed` when the request is refused or the answer breaks off.
        """
        body = {"model": model, "messages": list(turns), "stream": True}
        try:
            with self._http.stream(
                "POST",
                "chat/completions",
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
            ) as response:
                if response.status_code != 200:
                    _refuse_error(response.status_code, response.read())
                yield from _read_events(response.iter_lines())
        except self._connection_errors as error:
            raise fail_to_connect(self._origin, error) from error


def _read_events(lines: Iterator[str]) -> Iterator[str]:
    """The text inside the events. Raises: `CommandFailed` for an error event or a missing end."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == _DONE:
            return
        event: dict[str, Any] = msgspec.json.decode(data)
        if "error" in event:
            raise CommandFailed(f"The answer broke off: {event['error']['message']}")
        for choice in event.get("choices", ()):
            yield choice["delta"].get("content") or ""
    raise CommandFailed("The answer broke off: the connection ended before it did.")


def _refuse_error(status: int, body: bytes) -> None:
    """Raises: `CommandFailed` with the server's own sentence unless `status` is a success."""
    if status < 400:
        return
    try:
        content: dict[str, Any] = msgspec.json.decode(body)
        sentence = str(content["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        sentence = body.decode("utf-8", "replace")[:200]
    raise CommandFailed(f"{sentence} (HTTP {status})")
