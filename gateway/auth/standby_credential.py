"""Hot standby's own credential at this gateway: a text of the settings, compared by its digest.

Owns the comparison; what it opens is said by the routes (`gateway.auth.access`). It is in no store:
a planner needs so little that whoever finds it learns where weights are and can move them, no more.
Read next: `gateway.api.guard`.
"""

import hashlib
import hmac
from collections.abc import Sequence

from gateway.auth.bearer import read_bearer
from gateway.settings import StandbyAccessSettings


class StandbyCredential:
    """Tells whether a request is hot standby's."""

    def __init__(self, settings: StandbyAccessSettings | None) -> None:
        """None knows nobody."""
        self._digest = None if settings is None else _digest(settings.credential.reveal())

    def is_shown(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """True when `headers` carry it. Raises: `Unauthenticated` for none or a malformed one."""
        credential = read_bearer(headers, "operator's credential")
        return self._digest is not None and hmac.compare_digest(self._digest, _digest(credential))


def _digest(credential: str) -> bytes:
    """Of one length, so that a comparison takes the same time whatever was sent."""
    return hashlib.sha256(credential.encode()).digest()
