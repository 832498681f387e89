"""The one way to add a page to the console, so that none can lack what all of them have.

Owns that every page demands a session unless it says otherwise, that every change is a post whose
form is checked, and how errors look. Must not know any page. Read next: `gateway.console.table`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.route_table import Page, Refusal, Route
from gateway.auth.access import PUBLIC, SIGNED_IN
from gateway.auth.caller import Caller
from gateway.console.posted_form import PostedFormReader, PostedT

PREFIX: Final = "/console"
Action = Callable[[Request, Caller, PostedT], Awaitable[Response]]
"""What a form does; the answer sends the browser on, or shows the form again."""


class PageTable:
    """Collects the console's routes."""

    def __init__(self, refuse: Refusal) -> None:
        """`refuse` makes a page of an error."""
        self.routes: list[Route] = []
        self._refuse = refuse

    def show(self, name: str, path: str, page: Page) -> None:
        """A page that is read; `path` continues the console's own."""
        self._add(Route(f"console_{name}", "GET", PREFIX + path, SIGNED_IN, page))

    def show_anyone(self, name: str, path: str, page: Page) -> None:
        """A page for those who have not signed in."""
        self._add(Route(f"console_{name}", "GET", PREFIX + path, PUBLIC, page))

    def act(
        self, name: str, path: str, reader: PostedFormReader[PostedT], action: Action[PostedT]
    ) -> None:
        """A form that changes something."""

        async def page(request: Request, caller: Caller) -> Response:
            form_token = caller.require_session().form_token
            return await action(request, caller, await reader.read_posted(request, form_token))

        path = PREFIX + path
        self._add(Route(f"console_{name}", "POST", path, SIGNED_IN, page, form=reader))

    def act_anyone(
        self, name: str, path: str, reader: PostedFormReader[PostedT], page: Page
    ) -> None:
        """A form for those who have not signed in; `page` checks its token itself."""
        self._add(Route(f"console_{name}", "POST", PREFIX + path, PUBLIC, page, form=reader))

    def _add(self, route: Route) -> None:
        self.routes.append(replace(route, refuse=self._refuse))
