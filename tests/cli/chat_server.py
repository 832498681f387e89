"""The chat routes of a gateway, scripted, on a real socket: what `hearth chat` is tested against.

The real gateway is put to the same use in tests/integration.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.fixtures.http_thread import serve_http

ACCOUNT_ID = "0123456789abcdef0123456789abcdef"
API_TOKEN = "secret-api-token"


@dataclass
class ChatScript:
    """What the server answers and what it was asked."""

    pieces: tuple[str, ...] = ("Hello", " there", ".")
    ending: str = "data: [DONE]\n\n"
    endless: bool = False
    """Goes on until the client leaves, which sets `was_cancelled`."""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    was_cancelled: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    script: ChatScript

    def do_GET(self) -> None:
        if self._is_allowed():
            self._send_json(200, {"object": "list", "data": [{"id": "@hearth/tiny-chat"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.script.bodies.append(body)
        if not self._is_allowed():
            return
        if body["model"] != "@hearth/tiny-chat":
            self._send_json(400, {"error": {"message": "No such model.", "code": 5007}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while True:
                for piece in self.script.pieces:
                    event = {"choices": [{"index": 0, "delta": {"content": piece}}]}
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    self.wfile.flush()
                if not self.script.endless:
                    break
                self.script.was_cancelled.wait(0.02)
            self.wfile.write(self.script.ending.encode())
        except (BrokenPipeError, ConnectionResetError):
            self.script.was_cancelled.set()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _is_allowed(self) -> bool:
        is_allowed = self.headers["Authorization"] == f"Bearer {API_TOKEN}"
        prefix = f"/client/v4/accounts/{ACCOUNT_ID}/ai/v1/"
        if not is_allowed:
            self._send_json(401, {"error": {"message": "The API token is unknown."}})
        elif not self.path.startswith(prefix):
            self._send_json(404, {"error": {"message": "No such route."}})
        return is_allowed and self.path.startswith(prefix)

    def _send_json(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serve_chat(script: ChatScript) -> Iterator[str]:
    """Serves `script` on a free loopback port; yields its origin."""
    handler = type("Handler", (_Handler,), {"script": script})
    with serve_http(handler) as origin:
        yield origin
