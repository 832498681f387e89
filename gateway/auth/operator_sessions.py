"""Operators who have signed in to the console: their sessions, in this process's memory.

A session holds the operator's credential and asks the store for it at each request, so that it ends
with the credential. Owns ids, life and the cookie's name; must not know pages. Which form a post
came from is `gateway.console.posted_form`'s. Read next: `gateway.auth.authenticator`,
docs/adr (sessions of the console).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts.errors import Unauthenticated
from contracts.ids import AccountId
from contracts.settings import Secret
from gateway.sources import Sources
from tenancy.interfaces import Operator, OperatorDirectory

COOKIE: Final = "hearth_console"
SECURE_COOKIE: Final = "__Host-hearth_console"
"""Over TLS; browsers take this name only with `Secure` and for this host alone."""
LIVE_HEADER: Final = b"x-hearth-live"
"""On requests that a page sends by itself: they do not keep a session from ending."""
IDLE_S: Final = 30 * 60.0
LONGEST_S: Final = 12 * 3600.0
MAX_SESSIONS: Final = 1000
_ID_BITS: Final = 256
_SIGN_IN: Final = "Please sign in."
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True)
class Session:
    """One browser's. Units: seconds of the monotonic clock."""

    credential: Secret
    form_token: str = field(repr=False)
    """Stands in every form of this session, and nowhere else."""
    began_s: float
    used_s: float
    notices: list[str] = field(default_factory=list[str])
    """What the next page says once."""
    shown_once: dict[str, Secret] = field(default_factory=dict[str, Secret])
    """New credentials by the page that is to show them."""
    playground_tokens: dict[AccountId, Secret] = field(default_factory=dict[AccountId, Secret])
    """API tokens that this session has made to try models with."""


class OperatorSessions:
    """Begins, finds and ends sessions; belongs to one event loop."""

    def __init__(self, directory: OperatorDirectory, sources: Sources) -> None:
        """Nobody has signed in."""
        self._directory = directory
        self._sources = sources
        self._sessions: dict[bytes, Session] = {}

    def begin(self, credential: str) -> str:
        """The cookie's value of a new session, whose operator has just proved who they are.

        An id that a browser brought along never becomes a session's.
        """
        now_s = self._sources.monotonic_s()
        self._drop_ended(now_s)
        value = self.draw_token()
        self._sessions[_digest(value)] = Session(
            Secret(credential), self.draw_token(), now_s, now_s
        )
        if len(self._sessions) > MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used_s)]
        return value

    async def find(self, headers: Headers) -> tuple[Session, Operator]:
        """The session that the cookie names, and whose it is at this moment.

        Raises: `Unauthenticated` when there is none any more, `StoreUnavailable`.
        """
        value = read_cookie(headers, SECURE_COOKIE) or read_cookie(headers, COOKIE)
        now_s = self._sources.monotonic_s()
        key = _digest(value)
        session = self._sessions.get(key)
        if session is None or _has_ended(session, now_s):
            self._sessions.pop(key, None)
            raise Unauthenticated(_SIGN_IN)
        operator = await self._directory.find_operator(session.credential.reveal())
        if operator is None:
            self._sessions.pop(key, None)
            raise Unauthenticated("Your credential is not valid any more. Please sign in again.")
        if not any(name == LIVE_HEADER for name, _ in headers):
            session.used_s = now_s
        return session, operator

    def end(self, session: Session) -> None:
        """The session is over: its cookie is worth nothing."""
        self._sessions = {key: one for key, one in self._sessions.items() if one is not session}

    def _drop_ended(self, now_s: float) -> None:
        self._sessions = {
            key: session
            for key, session in self._sessions.items()
            if not _has_ended(session, now_s)
        }

    def draw_token(self) -> str:
        """A text that nobody can guess."""
        return f"{self._sources.random_bits(_ID_BITS):064x}"


def read_cookie(headers: Headers, wanted: str) -> str:
    """A cookie's value; empty when there is none, or more than one of the name."""
    found: list[str] = []
    for name, line in headers:
        if name == b"cookie":
            for pair in line.decode("latin-1").split(";"):
                key, _, value = pair.strip().partition("=")
                if key == wanted:
                    found.append(value)
    return found[0] if len(found) == 1 else ""


def _has_ended(session: Session, now_s: float) -> bool:
    return now_s - session.used_s > IDLE_S or now_s - session.began_s > LONGEST_S


def _digest(value: str) -> bytes:
    """What a session is found under, so that comparing takes the same time for every guess."""
    return hashlib.sha256(value.encode()).digest()
