"""Payload logs as their owner reads and deletes them: `PayloadAdministration` on SQLAlchemy.

The account itself decides that they are kept, with one of its tokens, and alone reads them through
the API. Operators can only end it (`tenancy.accounts.store`). Read next: `tenancy.payloads.rows`.
"""

from typing import Final

from sqlalchemy import ColumnElement, and_, delete, select, update

from contracts.errors import Conflict, Forbidden, InvalidRequest, InvariantBroken, NotFound
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RequestId, is_request_id
from contracts.payloads import DAY_MS, MAX_PAYLOAD_DAYS, Payload, PayloadHead
from tenancy.actors import ActorKind
from tenancy.changes import Action
from tenancy.encryption.data_keys import find_data_key
from tenancy.ownership import create_account_not_found, is_living_account, require_account
from tenancy.payloads.rows import open_row, to_head
from tenancy.store import ActingStore
from tenancy.tables import accounts, payload_logs
from tenancy.validation import check_page_size

_ALL: Final = "all"


class PayloadLogStore(ActingStore):
    """What one actor may do with payload logs."""

    async def set_payload_days(self, account_id: AccountId, days: int | None) -> None:
        """Keeps payloads from now on for so many days; None: no more, and what is kept is deleted.

        Raises: `NotFound`, `InvalidRequest` (days), `Conflict` (the account's retention),
        `Forbidden` for anybody but the account itself.
        """
        self._require_own(account_id)
        self._require_owner()
        if days is not None and not 1 <= days <= MAX_PAYLOAD_DAYS:
            message = f"`days` must be between 1 and {MAX_PAYLOAD_DAYS}."
            raise InvalidRequest(message, param="days")
        of_it = payload_logs.c.account_id == account_id
        async with self._change(Action.PAYLOAD_LOG_SET) as change:
            query = select(accounts.c.retention).where(is_living_account(account_id))
            retention = (
                await change.connection.execute(query.with_for_update())
            ).scalar_one_or_none()
            if retention is None:
                raise create_account_not_found()
            if days is not None and retention == RetentionClass.NONE:
                raise Conflict("The account's retention is `none`: nothing of it is ever kept.")
            statement = update(accounts).where(accounts.c.account_id == account_id)
            await change.connection.execute(statement.values(payload_days=days))
            if days is None:
                await change.connection.execute(delete(payload_logs).where(of_it))
            else:
                expires = payload_logs.c.began_unix_ms + days * DAY_MS
                await change.connection.execute(
                    update(payload_logs).where(of_it).values(expires_unix_ms=expires)
                )
            change.note(account_id, account_id, days=days)

    async def list_payloads(
        self, account_id: AccountId, *, limit: int = 100, after: RequestId | None = None
    ) -> list[PayloadHead]:
        """At most `limit`, the newest first, those before `after`.

        Raises: `NotFound` (account), `InvalidRequest` (limit), `Forbidden` for operators.
        """
        self._require_own(account_id)
        self._require_owner()
        columns = [column for column in payload_logs.c if column.name != "sealed"]
        query = (
            select(*columns)
            .where(payload_logs.c.account_id == account_id)
            .order_by(payload_logs.c.request_id.desc())
            .limit(check_page_size(limit))
        )
        if after is not None:
            if not is_request_id(after):
                raise InvalidRequest("`after` is not a request id.", param="after")
            query = query.where(payload_logs.c.request_id < after)
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            return [to_head(row) for row in (await connection.execute(query)).all()]

    async def read_payload(self, account_id: AccountId, request_id: RequestId) -> Payload:
        """Raises: `NotFound`, also for another account's; `Forbidden` for operators."""
        self._require_own(account_id)
        self._require_owner()
        async with self._database.read() as connection:
            query = select(payload_logs).where(_is_it(account_id, request_id))
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                raise _create_not_found()
            key = await find_data_key(connection, account_id, self._keys)
        if key is None:
            raise InvariantBroken("An account with payload logs has lost its key.")
        return open_row(row, key)

    async def delete_payload(self, account_id: AccountId, request_id: RequestId) -> None:
        """Raises: `NotFound`."""
        self._require_own(account_id)
        statement = delete(payload_logs).where(_is_it(account_id, request_id))
        async with self._change(Action.PAYLOAD_LOG_DELETE, moves_epoch=False) as change:
            if (await change.connection.execute(statement)).rowcount == 0:
                raise _create_not_found()
            change.note(request_id, account_id)

    async def delete_payloads(self, account_id: AccountId) -> int:
        """How many there were. Raises: `NotFound` (account)."""
        self._require_own(account_id)
        statement = delete(payload_logs).where(payload_logs.c.account_id == account_id)
        async with self._change(Action.PAYLOAD_LOG_DELETE, moves_epoch=False) as change:
            await require_account(change.connection, account_id)
            count = (await change.connection.execute(statement)).rowcount
            change.note(_ALL, account_id, count=count)
            return count

    def _require_owner(self) -> None:
        """Raises `Forbidden` for whoever runs the platform: the words are the tenant's."""
        if self._actor.kind is not ActorKind.API_TOKEN:
            raise Forbidden("Only the account itself may do this, with one of its tokens.")


def _is_it(account_id: AccountId, request_id: RequestId) -> ColumnElement[bool]:
    """The condition on one. Raises: `NotFound` for ids that none can have."""
    if not is_request_id(request_id):
        raise _create_not_found()
    return and_(payload_logs.c.account_id == account_id, payload_logs.c.request_id == request_id)


def _create_not_found() -> NotFound:
    return NotFound("The account has no payload log of this request.", param="request_id")
