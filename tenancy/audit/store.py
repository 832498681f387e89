"""Reading the audit log on an actor's behalf.

Owns who may read what; must not know statements. Read next: `tenancy.audit.log`.
"""

from contracts.errors import Forbidden
from tenancy.administration import ActorKind, AuditEntry, AuditFilter
from tenancy.audit.log import list_entries
from tenancy.store import ActingStore
from tenancy.validation import check_page_size


class AuditStore(ActingStore):
    """Lists audit entries."""

    async def list_audit_entries(
        self,
        wanted: AuditFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        oldest_first: bool = False,
    ) -> list[AuditEntry]:
        """At most `limit` entries, those beyond sequence `after` in the direction asked for.

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
                oldest_first=oldest_first,
            )
