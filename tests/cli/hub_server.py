"""The part of the hub's HTTP interface that a download uses, on a real socket.

Serves one repository from memory: its description, HEAD and GET of its files with ETag,
X-Repo-Commit and Range. It can break a connection in the middle of a file. Remembers requests.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.fixtures.http_thread import serve_http

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubState:
    """One repository and what was asked of it."""

    repository: str
    files: Mapping[str, bytes]
    breaks: dict[str, int] = field(default_factory=dict[str, int])
    """File name to the number of bytes after which its next GET is cut, once."""
    is_gated: bool = False
    requests: list[tuple[str, str, str | None]] = field(
        default_factory=list[tuple[str, str, str | None]]
    )
    """Method, path and Range header of every request."""

    def list_fetched(self) -> list[str]:
        """Names of the files whose content was asked for, in order."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


def _describe_large(name: str, content: bytes) -> dict[str, Any] | None:
    """What the hub says of a file in large-file storage; None for the small ones."""
    if not name.endswith(".safetensors"):
        return None
    digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "size": len(content), "pointerSize": 134}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: HubState

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        state = self.state
        path = unquote(urlsplit(self.path).path)
        state.requests.append((self.command, path, self.headers.get("Range")))
        if state.is_gated:
            return self._refuse(403, "GatedRepo", "Access to this model is restricted.")
        repository = f"/api/models/{state.repository}"
        if path in (repository, f"{repository}/revision/main", f"{repository}/revision/{COMMIT}"):
            return self._describe()
        if path.startswith(f"{repository}/revision/"):
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        for revision in ("main", COMMIT):
            prefix = f"/{state.repository}/resolve/{revision}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in state.files:
                return self._send_file(path.removeprefix(prefix))
        return self._refuse(404, "RepoNotFound", "Repository not found")

    def _describe(self) -> None:
        siblings: list[dict[str, Any]] = [
            {"rfilename": name, "size": len(content), "lfs": _describe_large(name, content)}
            for name, content in self.state.files.items()
        ]
        description = {
            "id": self.state.repository,
            "modelId": self.state.repository,
            "sha": COMMIT,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": siblings,
        }
        body = json.dumps(description).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _send_file(self, name: str) -> None:
        content = self.state.files[name]
        start = 0
        range_header = self.headers.get("Range")
        if range_header is not None:
            start = int(range_header.removeprefix("bytes=").partition("-")[0])
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.state.breaks.pop(name, None) if self.command == "GET" else None
        body = content[start:]
        self._send(206 if start else 200, body, headers, cut=cut)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serve_hub(state: HubState) -> Iterator[str]:
    """Serves `state` on a free loopback port; yields the address for `HF_ENDPOINT`."""
    handler = type("Handler", (_Handler,), {"state": state})
    with serve_http(handler) as origin:
        yield origin
