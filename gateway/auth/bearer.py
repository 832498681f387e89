"""The credential inside an Authorization header.

Must not know what kind of credential it is or whether it is good; its value appears in no message.
"""

from collections.abc import Sequence
from typing import Final

from contracts.errors import Unauthenticated

_AUTHORIZATION: Final = b"authorization"
MAX_CREDENTIAL_BYTES: Final = 512


def read_bearer(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The credential after `Bearer`.

    Raises: `Unauthenticated` when there is none, more than one, or one of another scheme.
    """
    by_name = dict(headers)
    found = by_name.get(_AUTHORIZATION)
    if found is None:
        raise Unauthenticated("Authentication error: send `Authorization: Bearer <API token>`.")
    if len(by_name) != len(headers) and sum(n == _AUTHORIZATION for n, _ in headers) > 1:
        raise Unauthenticated("Send exactly one Authorization header.")
    scheme, _, credential = found.partition(b" ")
    credential = credential.strip()
    if scheme.lower() != b"bearer" or not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        raise Unauthenticated("Authentication error: the Authorization header is malformed.")
    if not credential.isascii():
        raise Unauthenticated("Authentication error: the credential is malformed.")
    return credential.decode("ascii")
