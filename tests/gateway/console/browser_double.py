"""A browser of few manners: keeps cookies, fills in forms, follows nothing by itself.

What a page looks like to people is asked of a real one (`test_browser`); this one sends whatever a
test, or an attacker, likes. Read next: `tests.gateway.running_gateway`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from yarl import URL

from tests.gateway.running_gateway import RunningGateway

TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str
    cookies: SimpleCookie

    @property
    def location(self) -> str:
        """Where it sends the browser."""
        return self.headers["location"]

    @property
    def form_token(self) -> str:
        """The token in the page's forms."""
        found = TOKEN.search(self.text)
        assert found is not None, self.text[:2000]
        return found.group(1)

    @property
    def seen(self) -> str:
        """What people read: the text without its tags."""
        return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.text)))


@dataclass
class BrowserDouble:
    """One person's browser."""

    gateway: RunningGateway
    cookies: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    """Another than the operators' port, for tests that need one."""

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """A page."""
        return await self._send("GET", path, dict(headers or {}), None)

    async def post(
        self,
        path: str,
        fields: Mapping[str, str | list[str]],
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A form, as it is given: a test fills in the token."""
        sent = {"content-type": "application/x-www-form-urlencoded"}
        sent.update(SAME_ORIGIN if headers is None else headers)
        return await self._send("POST", path, sent, urlencode(fields, doseq=True).encode())

    async def submit(
        self, page: str, fields: Mapping[str, str | list[str]], action: str | None = None
    ) -> Answer:
        """The form of `page` filled in, sent where it belongs."""
        token = (await self.get(page)).form_token
        return await self.post(action or page.partition("?")[0], {"form_token": token, **fields})

    async def sign_in(self, credential: str | None = None, next_path: str = "") -> Answer:
        """Through the door, as the gateway's operator unless said otherwise."""
        value = credential or self.gateway.operator
        fields = {"credential": value, "next": next_path}
        return await self.submit("/console/sign-in", fields)

    async def _send(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> Answer:
        if self.cookies and "cookie" not in headers:
            headers["cookie"] = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        url = URL((self.origin or self.gateway.admin) + path, encoded=True)
        async with self.gateway.session.request(
            method, url, data=body, headers=headers, allow_redirects=False
        ) as response:
            cookies = SimpleCookie()
            for line in response.headers.getall("set-cookie", []):
                cookies.load(line)
            for name, morsel in cookies.items():
                self.cookies[name] = morsel.value
                if not morsel.value:
                    del self.cookies[name]
            # aiohttp's own jar would mix up the browsers of one test.
            self.gateway.session.cookie_jar.clear()
            return Answer(response.status, response.headers, await response.text(), cookies)
