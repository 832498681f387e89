"""The credential inside a request's headers.

Must not know what kind of credential it is or whether it is good; its value appears in no message.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from contracts.errors import Unauthenticated

_AUTHORIZATION: Final = b"authorization"
_API_KEY: Final = b"x-api-key"
MAX_CREDENTIAL_BYTES: Final = 512


def read_api_token(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """A tenant's credential: after `Bearer`, else in `x-api-key`, where some clients put it.

    Raises: as `read_bearer`.
    """
    by_name = dict(headers)
    key = by_name.get(_API_KEY)
    if key is None or _AUTHORIZATION in by_name:
        return _read_bearer(headers, by_name)
    if sum(name == _API_KEY for name, _ in headers) > 1:
        raise Unauthenticated("Send exactly one x-api-key header.")
    if not 0 < len(key) <= MAX_CREDENTIAL_BYTES or not key.isascii():
        raise Unauthenticated("Authentication error: the x-api-key header is malformed.")
    return key.decode("ascii")


def read_bearer(headers: Sequence[tuple[bytes, bytes]], kind: str = "API token") -> str:
    """The credential after `Bearer`; `kind` is what whoever sends none is asked for.

    Raises: `Unauthenticated` when there is none, more than one, or one of another scheme.
    """
    return _read_bearer(headers, dict(headers), kind)


def _read_bearer(
    headers: Sequence[tuple[bytes, bytes]],
    by_name: Mapping[bytes, bytes],
    kind: str = "API token",
) -> str:
    """The same with `headers` by their names."""
    found = by_name.get(_AUTHORIZATION)
    if found is None:
        raise Unauthenticated(f"Authentication error: send `Authorization: Bearer <{kind}>`.")
    if len(by_name) != len(headers) and sum(n == _AUTHORIZATION for n, _ in headers) > 1:
        raise Unauthenticated("Send exactly one Authorization header.")
    scheme, _, credential = found.partition(b" ")
    credential = credential.strip()
    if scheme.lower() != b"bearer" or not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        raise Unauthenticated("Authentication error: the Authorization header is malformed.")
    if not credential.isascii():
        raise Unauthenticated("Authentication error: the credential is malformed.")
    return credential.decode("ascii")
