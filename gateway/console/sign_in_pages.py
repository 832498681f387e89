"""Signing in with an operator's credential, and out again.

Owns the cookies. The form's own token stands in a cookie, since there is no session yet; a new
session gets a new id, whatever the browser brought along. Must not know what a session may do.
Read next: `gateway.auth.operator_sessions`.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import Forbidden, RateLimited, Unauthenticated
from gateway.auth.caller import Caller
from gateway.auth.composition import Authenticators
from gateway.auth.operator_sessions import COOKIE, SECURE_COOKIE, read_cookie
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.posted_form import Nothing, PostedForm, PostedFormReader
from gateway.console.rendering import SIGN_IN_PATH, Renderer, find_next_path
from gateway.errors import find_row

_FORM_COOKIE: Final = "hearth_sign_in"
_MAX_CREDENTIAL: Final = 512


class SignIn(PostedForm, frozen=True, kw_only=True):
    """The form."""

    credential: str
    next: str = ""


class SignInPages:
    """The door."""

    def __init__(self, renderer: Renderer, authenticators: Authenticators) -> None:
        """`authenticators` know operators and keep sessions."""
        self._renderer = renderer
        self._authenticators = authenticators
        self._reader = PostedFormReader(SignIn)

    def add_to(self, table: PageTable) -> None:
        """Their routes."""
        table.show_anyone("sign_in", "/sign-in", self.ask)
        table.act_anyone("sign_in_post", "/sign-in", self._reader, self.sign_in)
        table.act("sign_out", "/sign-out", PostedFormReader(Nothing), self.sign_out)

    async def ask(self, request: Request, caller: Caller) -> Response:
        """The form."""
        return self._show(request, find_next_path(request.query_params.get("next", "")))

    async def sign_in(self, request: Request, caller: Caller) -> Response:
        """On to the console, with a session; or the form again, with the reason."""
        token = read_cookie(request.scope["headers"], _FORM_COOKIE)
        try:
            form = await self._reader.read_posted(request, token)
        except Forbidden as error:
            return self._show(request, PREFIX, error.message, find_row(error).status)
        next_path = find_next_path(form.next)
        credential = form.credential.strip()[:_MAX_CREDENTIAL]
        try:
            await self._authenticators.operators.check(credential, caller.address)
        except (Unauthenticated, RateLimited) as error:
            message = "This is not the credential of an operator."
            if isinstance(error, RateLimited):
                message = error.message
            return self._show(request, next_path, message, find_row(error).status)
        response = self._renderer.send_on(next_path)
        is_secure = _is_secure(request)
        response.set_cookie(
            SECURE_COOKIE if is_secure else COOKIE,
            self._authenticators.sessions.begin(credential),
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )
        response.delete_cookie(_FORM_COOKIE, path=SIGN_IN_PATH)
        return response

    async def sign_out(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """Back to the door; the session is over."""
        self._authenticators.sessions.end(caller.require_session())
        response = self._renderer.send_on(SIGN_IN_PATH)
        for name, is_secure in ((COOKIE, False), (SECURE_COOKIE, True)):
            response.delete_cookie(
                name, path="/", secure=is_secure, httponly=True, samesite="strict"
            )
        response.headers["clear-site-data"] = '"cache", "storage"'
        return response

    def _show(
        self, request: Request, next_path: str, message: str = "", status: int = 200
    ) -> Response:
        """The form with a token that this browser alone has."""
        token = read_cookie(request.scope["headers"], _FORM_COOKIE)
        token = token or self._authenticators.sessions.draw_token()
        response = self._renderer.show_anyone(
            "sign_in.html", status=status, form_token=token, next_path=next_path, message=message
        )
        response.set_cookie(
            _FORM_COOKIE,
            token,
            path=SIGN_IN_PATH,
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )
        return response


def _is_secure(request: Request) -> bool:
    """True when the browser speaks TLS: to us, or to a proxy in front of us."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
