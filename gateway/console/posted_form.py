"""What browsers post: decoded into typed forms, once it is clear that a page of ours was filled in.

Owns the three marks of such a post: where the browser says it comes from, the session's token
inside the form, and no field that the form does not have. Must not know any page.
Read next: `gateway.console.page_table`.
"""

import hmac
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.requests import Request

from contracts.errors import Forbidden, InvalidRequest, PayloadTooLarge
from gateway.api.forms import FormReader

PostedT = TypeVar("PostedT", bound="PostedForm")
TOKEN_FIELD: Final = "form_token"
MAX_POST_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 64
_TYPE: Final = "application/x-www-form-urlencoded"
_OURS: Final = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of our own pages, and of addresses that a person has typed."""


class PostedForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a page may post: texts, and tuples of texts for fields that come repeatedly."""


class Nothing(PostedForm, frozen=True, kw_only=True):
    """A button."""


class PostedFormReader(FormReader[PostedT]):
    """Reads posts of one form."""

    async def read_posted(self, request: Request, form_token: str) -> PostedT:
        """The form, from a page that `form_token` was in.

        Raises: `Forbidden`, `InvalidRequest`, `PayloadTooLarge`.
        """
        refuse_foreign(request)
        fields = await _read_fields(request)
        sent = fields.pop(TOKEN_FIELD, [""])
        if not is_form_token(sent[0], form_token):
            raise Forbidden("This form is not from a page of your session. Load it and try again.")
        return self._convert(fields)

    def _convert(self, fields: dict[str, list[str]]) -> PostedT:
        """The form that `fields` fill in. Raises: `InvalidRequest`."""
        kinds = {one.name: one.type for one in msgspec.structs.fields(self.kind)}
        values: dict[str, Any] = {}
        for name, sent in fields.items():
            if kinds.get(name) is str and len(sent) > 1:
                raise InvalidRequest(f"`{name}` was sent twice.", param=name)
            values[name] = sent[0] if kinds.get(name) is str else sent
        try:
            return msgspec.convert(values, self.kind)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The form does not fit: {error}.") from error


def refuse_foreign(request: Request) -> None:
    """Raises `Forbidden` for what another site makes a browser send."""
    headers = request.headers
    if not is_ours(headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host")):
        raise Forbidden("This request comes from a page of another site.")


def is_ours(site: str | None, origin: str | None, host: str | None) -> bool:
    """True when a browser says that a page of ours sends this, or says nothing at all.

    Browsers of today send `Sec-Fetch-Site` to us over TLS or on loopback; others send `Origin`.
    """
    if site is not None:
        return site in _OURS
    return origin is None or urlsplit(origin).netloc == host


def is_form_token(sent: str, form_token: str) -> bool:
    """True when the token that was sent is the session's."""
    return bool(form_token) and hmac.compare_digest(sent.encode(), form_token.encode())


async def _read_fields(request: Request) -> dict[str, list[str]]:
    """Everything in the body by its name. Raises: `InvalidRequest`, `PayloadTooLarge`."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != _TYPE:
        raise InvalidRequest("This page takes forms only.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_POST_BYTES:
            raise PayloadTooLarge(f"The form is larger than {MAX_POST_BYTES} bytes.")
    try:
        fields = parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError as error:
        raise InvalidRequest("The form cannot be read.") from error
    if any("\0" in text for sent in fields.values() for text in sent):
        raise InvalidRequest("The form cannot be read: it has characters that no text has.")
    return fields
