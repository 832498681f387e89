"""Reading and checking the audit log on an actor's behalf.

Owns who may read what; must not know statements. Read next: `tenancy.audit.log`.
"""

import asyncio

from contracts.errors import Conflict, Forbidden, StoreUnavailable
from contracts.settings import SettingsError
from tenancy.actors import ActorKind
from tenancy.audit.entries import AuditEntry, AuditFilter
from tenancy.audit.log import list_entries
from tenancy.audit.verdict import Verdict
from tenancy.audit.verification import verify_log
from tenancy.store import ActingStore
from tenancy.validation import check_page_size


class AuditStore(ActingStore):
    """Lists audit entries, and checks them."""

    async def list_audit_entries(
        self,
        wanted: AuditFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        skip: int = 0,
        oldest_first: bool = False,
    ) -> list[AuditEntry]:
        """At most `limit` entries, those beyond sequence `after` in the direction asked for.

        `skip` entries are passed over first, which costs as much as reading them.

        Raises: `Forbidden` when an API token's actor asks for more than its own account.
        """
        is_tenant = self._actor.kind is ActorKind.API_TOKEN
        if is_tenant and (not wanted.account_id or wanted.account_id != self._actor.account_id):
            raise Forbidden("An API token reads the audit log of its own account only.")
        async with self._database.read() as connection:
            return await list_entries(
                connection,
                wanted,
                limit=check_page_size(limit),
                after=after,
                skip=skip,
                oldest_first=oldest_first,
            )

    async def verify_audit_log(self) -> Verdict:
        """What a check of the whole log against its hashes and signed heads finds.

        Raises: `Forbidden` for an API token's actor, `Conflict` while another check runs,
        `StoreUnavailable` when database or heads cannot be read.
        """
        self._require_platform()
        if self._parts.checking.locked():
            raise Conflict("A check is under way; try again when it is over.")
        async with self._parts.checking:
            try:
                # Each line's signature takes a while: others are served meanwhile.
                lines = await asyncio.to_thread(lambda: [*self._parts.heads.read(self._keys)])
            except SettingsError as error:
                raise StoreUnavailable("The signed heads cannot be read.") from error
            return await verify_log(self._database, lines)
