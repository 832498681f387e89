"""When API tokens were last used, as gateways have noted it: `TokenUseLog` on SQLAlchemy.

Owns the one statement. It is no change of the control plane: no audit entry, no epoch. A row that
is gone stays gone. Read next: `gateway.auth.token_uses`.
"""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import BigInteger, BindParameter, bindparam, or_, update

from contracts.ids import ApiTokenId
from tenancy.store import Store
from tenancy.tables import api_tokens

BATCH: Final = 1000
"""How many tokens are noted in one transaction: other writers wait for no more of them."""
_USED: Final[BindParameter[int]] = bindparam("used_unix_s", type_=BigInteger)
_LAST: Final = api_tokens.c.last_used_unix_s
_STATEMENT: Final = (
    update(api_tokens)
    .where(
        api_tokens.c.api_token_id == bindparam("used_id"),
        or_(_LAST.is_(None), _LAST < _USED),
    )
    .values(last_used_unix_s=_USED)
)


class TokenUseStore(Store):
    """Notes uses of many tokens at once."""

    async def note_api_token_uses(self, uses: Mapping[ApiTokenId, int]) -> None:
        """Moves the tokens' last uses forward to these seconds since 1970, never back.

        Raises: `StoreUnavailable`; some may have been noted then, and can be noted again.
        """
        # One order for all gateways, so that no two of them wait for each other.
        rows = [{"used_id": token, "used_unix_s": uses[token]} for token in sorted(uses)]
        for first in range(0, len(rows), BATCH):
            async with self._database.write() as connection:
                await connection.execute(_STATEMENT, rows[first : first + BATCH])
