"""What a tenant's API token can ask about itself.

Source: the platform's API contract, section 6.1. Must not know how tokens are stored.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.dialects.replies import SuccessEnvelope, encoder
from gateway.errors import Notice
from tenancy.interfaces import Principal

_VALID: Final = Notice(10000, "This API Token is valid and active")


class VerifiedToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of `tokens/verify`."""

    id: str
    status: str
    not_before: str | None = None
    expires_on: str | None = None


async def verify_token(request: Request, principal: Principal | None) -> Response:
    """The token that asks, which is active: any other has been refused before."""
    assert principal is not None
    token = VerifiedToken(
        principal.api_token_id,
        principal.status,
        _to_text(principal.not_before_unix_s),
        _to_text(principal.expires_unix_s),
    )
    body = SuccessEnvelope(token, messages=(_VALID,))
    return Response(encoder.encode(body), media_type="application/json")


def _to_text(unix_s: int | None) -> str | None:
    """A time in the form of RFC 3339."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
