"""Members in the database: `MemberAdministration` on SQLAlchemy.

Owns the statements on `members`. Addresses are kept under the account's data key only, so a purged
account's are gone with it. Read next: `tenancy.encryption.envelope`.
"""

from typing import Any, Final

from sqlalchemy import Row, and_, delete, insert, select

from contracts.errors import NotFound
from contracts.ids import AccountId, is_account_id
from tenancy.changes import Action
from tenancy.encryption.data_keys import create_data_key, find_data_key
from tenancy.encryption.envelope import Cell, seal, unseal
from tenancy.interfaces import Member
from tenancy.ownership import create_account_not_found, require_account, require_room
from tenancy.sources import create_id, read_unix_us
from tenancy.store import ActingStore
from tenancy.tables import members
from tenancy.validation import check_email

MAX_MEMBERS: Final = 1000


class MemberStore(ActingStore):
    """Adds, lists and removes members."""

    async def add_member(self, account_id: AccountId, email: str) -> Member:
        """Raises: `NotFound` (account), `InvalidRequest`, `Conflict` (too many)."""
        self._require_platform()
        address = check_email(email).encode()
        member_id = create_id(self._randomness)
        async with self._change(Action.MEMBER_ADD, moves_epoch=False) as change:
            connection = change.connection
            await require_room(connection, account_id, members, MAX_MEMBERS)
            key = await find_data_key(connection, account_id, self._keys)
            if key is None:  # an account of a version that made none
                key = await create_data_key(connection, account_id, self._keys, self._randomness)
            row = {
                "member_id": member_id,
                "account_id": account_id,
                "sealed_email": seal(
                    key, address, _to_cell(account_id, member_id), self._randomness
                ),
                "created_unix_us": read_unix_us(self._clock),
            }
            result = await connection.execute(insert(members).values(row).returning(members))
            change.note(member_id, account_id)
            return _to_member(result.one(), key)

    async def get_member(self, account_id: AccountId, member_id: str) -> Member:
        """Raises: `NotFound`, also when the member belongs to another account."""
        for member in await self.list_members(account_id):
            if member.member_id == member_id:
                return member
        raise _create_member_not_found()

    async def list_members(self, account_id: AccountId) -> list[Member]:
        """All members of the account, oldest first. Raises: `NotFound` (account)."""
        self._require_own(account_id)
        query = (
            select(members)
            .where(members.c.account_id == account_id)
            .order_by(members.c.created_unix_us, members.c.member_id)
        )
        async with self._database.read() as connection:
            await require_account(connection, account_id)
            rows = (await connection.execute(query)).all()
            key = await find_data_key(connection, account_id, self._keys) if rows else None
        return [] if key is None else [_to_member(row, key) for row in rows]

    async def remove_member(self, account_id: AccountId, member_id: str) -> None:
        """Raises: `NotFound`."""
        self._require_platform()
        if not is_account_id(account_id):
            raise create_account_not_found()
        if not is_account_id(member_id):
            raise _create_member_not_found()
        statement = delete(members).where(
            and_(members.c.account_id == account_id, members.c.member_id == member_id)
        )
        async with self._change(Action.MEMBER_REMOVE, moves_epoch=False) as change:
            if (await change.connection.execute(statement)).rowcount == 0:
                raise _create_member_not_found()
            change.note(member_id, account_id)


def _create_member_not_found() -> NotFound:
    return NotFound("The account has no member with this id.", param="member_id")


def _to_cell(account_id: AccountId, member_id: str) -> Cell:
    return Cell("members", member_id, "sealed_email", account_id)


def _to_member(row: Row[Any], key: bytes) -> Member:
    """The member a row describes."""
    account_id = AccountId(row.account_id)
    email = unseal(key, row.sealed_email, _to_cell(account_id, row.member_id))
    return Member(
        member_id=row.member_id,
        account_id=account_id,
        email=email.decode(),
        created_unix_s=row.created_unix_us // 1_000_000,
    )
