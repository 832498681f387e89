"""From a template and values to a page, or from an error to one.

Owns the environment of the templates, in which every value is escaped and a missing one is a
defect; the headers of every page; and what all pages show. Must not know any page's content.
Read next: `gateway.console.templates/page.html`, `gateway.console.security_headers`.
"""

import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from contracts.errors import InvariantBroken, ServiceError, StoreUnavailable, Unauthenticated
from gateway.auth.caller import Caller
from gateway.auth.operator_sessions import LIVE_HEADER
from gateway.console import figures
from gateway.console.assets import Assets
from gateway.console.page_table import PREFIX
from gateway.console.security_headers import NEVER_STORED, SECURITY_HEADERS
from gateway.errors import find_row

SIGN_IN_PATH: Final = PREFIX + "/sign-in"
_TEMPLATES: Final = Path(__file__).with_name("templates")
_OWN_PATH: Final = re.compile(r"/console(/[A-Za-z0-9_~%@-]+)*(\?[A-Za-z0-9._~%@=&:+-]*)?")
_HTML: Final = "text/html; charset=utf-8"


class Renderer:
    """Makes pages."""

    def __init__(self, assets: Assets, gateway_id: str) -> None:
        """`assets` are what pages link to; `gateway_id` says whose pages these are."""
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            money=figures.format_money,
            count=figures.format_count,
            bytes=figures.format_bytes,
            neurons=figures.format_neurons,
            seconds=figures.format_seconds,
            share=figures.format_share,
            time=figures.format_time,
            iso=figures.format_iso,
            query=urlencode,
            quote=_quote,
        )
        self._shared: dict[str, Any] = {
            "prefix": PREFIX,
            "stylesheet": assets.stylesheet_path,
            "script": assets.script_path,
            "icon": assets.icon_path,
            "gateway_id": gateway_id,
        }

    def show(
        self, request: Request, caller: Caller, template: str, *, status: int = 200, **values: Any
    ) -> Response:
        """A page for an operator who has signed in."""
        session, operator = caller.require_session(), caller.operator
        assert operator is not None
        notices: list[str] = []
        if not is_live(request):
            notices, session.notices = session.notices, []
        return self.show_anyone(
            template,
            status=status,
            form_token=session.form_token,
            operator=operator,
            notices=notices,
            path=request.url.path,
            **values,
        )

    def show_anyone(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page for those who have not signed in."""
        text = self._environment.get_template(template).render(self._shared | values)
        headers = {**SECURITY_HEADERS, **NEVER_STORED}
        return Response(text, status, headers, media_type=_HTML)

    def refuse(self, request: Request, error: ServiceError) -> Response:
        """The page that says what went wrong; whoever has no session is sent to get one."""
        status = find_row(error).status
        if isinstance(error, Unauthenticated) and not is_live(request):
            return self.send_on(_create_sign_in_path(request))
        is_ours = isinstance(error, InvariantBroken | StoreUnavailable)
        return self.show_anyone(
            "error.html",
            status=status,
            code=status,
            phrase=HTTPStatus(status).phrase,
            message=error.message,
            is_ours=is_ours,
        )

    def send_on(self, path: str) -> Response:
        """To another page, which is then read."""
        return RedirectResponse(path, 303, {**SECURITY_HEADERS, **NEVER_STORED})


def is_live(request: Request) -> bool:
    """True for what a page asks by itself, to stay up to date."""
    return LIVE_HEADER.decode() in request.headers


def find_next_path(text: str) -> str:
    """`text` if it is a page of the console, else the console's first one."""
    return text if _OWN_PATH.fullmatch(text) else PREFIX


def _create_sign_in_path(request: Request) -> str:
    """Where to sign in, and to go on from there to the page that was asked for."""
    path = request.url.path
    if request.url.query:
        path = f"{path}?{request.url.query}"
    if request.method != "GET" or find_next_path(path) != path or path == PREFIX:
        return SIGN_IN_PATH
    return f"{SIGN_IN_PATH}?{urlencode({'next': path})}"


def _quote(text: str) -> str:
    """`text` as one part of a path."""
    return quote(text, safe="")
