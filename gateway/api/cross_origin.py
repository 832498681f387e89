"""Scripts of web pages: which origins may use an account, and what browsers are told.

Off unless an account lists origins; then only they, on this account's paths alone. Browsers ask
first (a preflight), without a credential, so that the answer tells nothing but this. Credentials of
the browser's own (cookies) are never allowed. Source: WHATWG Fetch, section 3.2.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.inference_paths import ACCOUNTS_PREFIX
from gateway.settings import CrossOriginSettings

Headers = Sequence[tuple[bytes, bytes]]

_ANY: Final = "*"
_METHOD_ASKED: Final = b"access-control-request-method"
_HEADERS_ASKED: Final = b"access-control-request-headers"
_HEADER_NAMES: Final = re.compile(rb"[A-Za-z0-9_\-, ]{1,2000}")
_METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
_MAX_AGE_S: Final = 7200
_EXPOSED: Final = (
    b"x-request-id, request-id, cf-ray, retry-after, x-should-retry, idempotent-replayed, "
    b"x-hearth-region"
)


class CrossOrigin:
    """The origins of every account."""

    def __init__(self, rules: Iterable[CrossOriginSettings]) -> None:
        """Several rules for one account add up."""
        self._origins: dict[str, set[str]] = {}
        for rule in rules:
            self._origins.setdefault(rule.account_id, set()).update(rule.origins)

    @property
    def is_on(self) -> bool:
        """True when any account lists any origin."""
        return bool(self._origins)

    def grant(self, path: str, headers: Headers) -> bytes:
        """Lines that let a request's origin read the answer; empty when it may not."""
        if not path.startswith(ACCOUNTS_PREFIX):
            return b""
        account_id = path[len(ACCOUNTS_PREFIX) :].partition("/")[0]
        allowed = self._origins.get(account_id)
        origin = _find_header(headers, b"origin")
        if allowed is None or origin is None:
            return b""
        if origin.decode("latin-1") not in allowed:
            if _ANY not in allowed:
                return b""
            origin = b"*"
        return (
            b"access-control-allow-origin: %b\r\nvary: origin\r\n"
            b"access-control-expose-headers: %b\r\n"
        ) % (origin, _EXPOSED)


class CrossOriginPages:
    """The ordinary pages, to which scripts may be let as well."""

    def __init__(self, pages: ASGIApp, origins: CrossOrigin) -> None:
        """`pages` answer; what is added here are headers, and the answers to preflights."""
        self._pages = pages
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        granted = b""
        if self._origins.is_on:
            granted = self._origins.grant(scope["path"], scope["headers"])
        if not granted:
            await self._pages(scope, receive, send)
        elif is_preflight(scope["method"].encode(), scope["headers"]):
            lines = _split(describe_preflight(granted, scope["headers"]))
            await send({"type": "http.response.start", "status": 200, "headers": lines})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._pages(scope, receive, _add_lines(send, granted))


def is_preflight(method: bytes, headers: Headers) -> bool:
    """True when a browser asks whether it may ask."""
    return method == b"OPTIONS" and _find_header(headers, _METHOD_ASKED) is not None


def describe_preflight(granted: bytes, headers: Headers) -> bytes:
    """The lines that say which methods and headers may be used."""
    lines = granted + b"access-control-allow-methods: %b\r\naccess-control-max-age: %d\r\n" % (
        _METHODS,
        _MAX_AGE_S,
    )
    wanted = _find_header(headers, _HEADERS_ASKED)
    if wanted is not None and _HEADER_NAMES.fullmatch(wanted):
        lines += b"access-control-allow-headers: %b\r\n" % wanted
    return lines


def _add_lines(send: Send, lines: bytes) -> Send:
    """`send` for pages whose answers carry `lines` as well."""
    headers = _split(lines)

    async def send_with_lines(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return send_with_lines


def _split(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Whole lines as pairs."""
    pairs = (line.partition(b": ") for line in lines.split(b"\r\n")[:-1])
    return [(name, value) for name, _, value in pairs]


def _find_header(headers: Headers, wanted: bytes) -> bytes | None:
    """A header's value."""
    for name, value in headers:
        if name == wanted:
            return value
    return None
