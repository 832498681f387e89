"""The playground's requests: past the framework, on the tenants' own path.

Each needs an operator's session and an API token of the account. With the token the request is a
tenant's: the same checks, limits and bill. A pasted token goes no further than its request, and the
answer ends with the session. Must not know what is answered.
Read next: `gateway.request_path`, `gateway.auth.operator_sessions`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from contracts.errors import (
    Forbidden,
    NotFound,
    ServiceError,
    StoreUnavailable,
    Unauthenticated,
)
from contracts.ids import AccountId, is_account_id
from gateway.api.inference_routes import INFERENCE
from gateway.auth.bearer import read_bearer
from gateway.auth.operator_sessions import LIVE_HEADER, Headers, OperatorSessions, Session
from gateway.console.page_table import PREFIX
from gateway.console.posted_form import is_form_token, is_ours
from gateway.dialects.openai_chat import OPENAI_CHAT
from gateway.errors import refuse_method
from gateway.inference_call import InferenceCall, InferenceRoute
from gateway.middleware.exchange import HttpExchange
from gateway.request_path import RequestPath

RUN_PATH: Final = PREFIX + "/playground/run/"
TOKEN_HEADER: Final = b"x-form-token"
PLAYGROUND: Final = "console_playground"
"""The route's name, for metrics."""
_ROUTE: Final = InferenceRoute(PLAYGROUND, RUN_PATH + "{account_id}", INFERENCE, OPENAI_CHAT)
_OF_THE_CONSOLE: Final = frozenset({b"cookie", b"authorization", b"x-api-key", TOKEN_HEADER})
_LOOK_S: Final = 1.0
_ANSWER_HEADERS: Final = b"x-content-type-options: nosniff\r\n"


class PlaygroundRoutes:
    """Requests of the page, past the framework like those of tenants."""

    def __init__(self, sessions: OperatorSessions, request_path: RequestPath) -> None:
        """`request_path` serves whoever may be served."""
        self._sessions = sessions
        self._request_path = request_path

    def find(self, path: str) -> InferenceCall | None:
        """The call that `path` makes; None for every other path."""
        if not path.startswith(RUN_PATH):
            return None
        account_id = path[len(RUN_PATH) :]
        return InferenceCall(_ROUTE, AccountId(account_id), None, is_account_id(account_id))

    def serve(self, found: InferenceCall, exchange: HttpExchange) -> Coroutine[Any, Any, None]:
        """Answers one request, whatever happens."""
        return self._serve(found, exchange)

    async def _serve(self, call: InferenceCall, exchange: HttpExchange) -> None:
        exchange.extra_headers += _ANSWER_HEADERS
        headers = exchange.headers
        try:
            await self._let_in(call, exchange)
        except ServiceError as refusal:
            await self._request_path.serve(call, exchange, refusal)
            return
        watch = asyncio.create_task(self._end_with_session(headers, exchange))
        try:
            await self._request_path.serve(call, exchange, None)
        finally:
            watch.cancel()

    async def _let_in(self, call: InferenceCall, exchange: HttpExchange) -> None:
        """Makes a tenant's request of it. Raises: `ServiceError` where it may not be one."""
        if exchange.method != b"POST":
            raise refuse_method(exchange.method.decode("ascii"), ("POST",))
        session, _ = await self._sessions.find(exchange.headers)
        credential = _find_credential(call, exchange, session)
        exchange.headers = [
            *(pair for pair in exchange.headers if pair[0] not in _OF_THE_CONSOLE),
            (b"authorization", b"Bearer " + credential.encode()),
        ]

    async def _end_with_session(self, headers: Headers, exchange: HttpExchange) -> None:
        """Cuts the answer once its operator is nobody any more, as if the page had been closed."""
        quiet = [*headers, (LIVE_HEADER, b"1")]
        while not exchange.is_lost:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._sessions.find(quiet)
            except StoreUnavailable:
                continue  # nobody has said that the operator is gone
            except Unauthenticated:
                exchange.cut()


def _find_credential(call: InferenceCall, exchange: HttpExchange, session: Session) -> str:
    """The API token that the request is made with. Raises: `Forbidden`, `Unauthenticated`."""
    headers = dict(exchange.headers)
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if not is_ours(_decode(site), _decode(origin), _decode(headers.get(b"host"))):
        raise Forbidden("This request comes from a page of another site.")
    if not is_form_token(_decode(headers.get(TOKEN_HEADER)) or "", session.form_token):
        raise Forbidden("This request is not from a page of your session.")
    if not call.is_account_possible:
        raise NotFound("There is no account with this id.")
    if b"authorization" in headers:
        return read_bearer(exchange.headers)
    made = session.playground_tokens.get(call.account_id)
    if made is None:
        raise Unauthenticated("Paste an API token of the account, or make one.")
    return made.reveal()


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
