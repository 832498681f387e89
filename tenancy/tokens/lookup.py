"""From the value of a credential to its principal: `PrincipalDirectory` on SQLAlchemy.

Must not know rows. Read next: `tenancy.tokens.principals`.
"""

from contracts.ids import AccountId, ApiTokenId
from tenancy.interfaces import Principal
from tenancy.store import Store
from tenancy.tokens.digests import digest_presented, list_presented_digests
from tenancy.tokens.format import CredentialKind
from tenancy.tokens.principals import find_principal_by_digests, find_principal_by_token_id


class PrincipalLookup(Store):
    """Finds the principals behind API tokens."""

    def digest_api_token(self, value: str) -> bytes | None:
        """Digest under the current pepper, or None when shape or checksum is wrong: no I/O."""
        return digest_presented(CredentialKind.API_TOKEN, value, self._keys.peppers.current)

    async def find_principal(self, value: str) -> Principal | None:
        """The principal whose token has this value, whatever its status; None when unknown."""
        digests = list_presented_digests(CredentialKind.API_TOKEN, value, self._keys.peppers)
        if not digests:
            return None
        async with self._database.read() as connection:
            return await find_principal_by_digests(connection, digests, self._keys.master_keys)

    async def find_principal_by_id(
        self, account_id: AccountId, api_token_id: ApiTokenId
    ) -> Principal | None:
        """The principal of an API token of the account, whatever its status; None when deleted."""
        async with self._database.read() as connection:
            return await find_principal_by_token_id(
                connection, account_id, api_token_id, self._keys.master_keys
            )
