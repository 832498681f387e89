"""The console's stylesheet and script: two files, read at the start, cached by their content.

Owns their addresses, which change with the content. Must not know pages.
"""

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import NotFound
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.security_headers import SECURITY_HEADERS

_FOLDER: Final = Path(__file__).with_name("files")
_TYPES: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "flame.svg": "image/svg+xml",
}
_KEPT: Final = {"cache-control": "public, max-age=31536000, immutable"}
_DIGITS: Final = 12


class Assets:
    """Serves them."""

    def __init__(self) -> None:
        """Reads the files."""
        self._contents = {name: (_FOLDER / name).read_bytes() for name in _TYPES}
        self.stylesheet_path = self._find_path("console.css")
        self.script_path = self._find_path("console.js")
        self.icon_path = self._find_path("flame.svg")

    def add_to(self, table: PageTable) -> None:
        """Their route."""
        table.show_anyone("asset", "/assets/{name}", self.page)

    async def page(self, request: Request, caller: Caller) -> Response:
        """One file."""
        name: str = request.path_params["name"]
        if name not in self._contents:
            raise NotFound("There is no such file.")
        headers = {**SECURITY_HEADERS, **_KEPT}
        return Response(self._contents[name], 200, headers, media_type=_TYPES[name])

    def _find_path(self, name: str) -> str:
        digest = hashlib.sha256(self._contents[name]).hexdigest()[:_DIGITS]
        return f"{PREFIX}/assets/{name}?v={digest}"
