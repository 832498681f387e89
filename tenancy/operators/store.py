"""Operators in the database: `OperatorDirectory` and `OperatorAdministration` on SQLAlchemy.

Owns the statements on `operators`. Their credentials have a prefix of their own, so that no API
token can ever pass for one. Read next: `tenancy.directory`.
"""

from typing import Any

from sqlalchemy import Row, delete, func, insert, select

from contracts.errors import Conflict, NotFound
from contracts.ids import OperatorId, is_account_id
from tenancy.changes import Action
from tenancy.interfaces import IssuedOperator, Operator
from tenancy.sources import create_id, read_unix_us
from tenancy.store import ActingStore, Store
from tenancy.tables import operators
from tenancy.tokens.digests import digest_issued, list_presented_digests
from tenancy.tokens.format import CredentialKind, create_credential
from tenancy.validation import check_name


class OperatorLookup(Store):
    """Finds operators by their credentials."""

    async def find_operator(self, value: str) -> Operator | None:
        """The operator whose credential has this value; None when unknown or malformed."""
        digests = list_presented_digests(CredentialKind.OPERATOR, value, self._keys.peppers)
        if not digests:
            return None
        query = select(operators).where(operators.c.digest.in_(digests))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _to_operator(row)


class OperatorStore(ActingStore):
    """Creates, lists and deletes operators."""

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        self._require_platform()
        value = create_credential(CredentialKind.OPERATOR, self._randomness)
        operator_id = create_id(self._randomness)
        row = {
            "operator_id": operator_id,
            "name": check_name(name),
            "digest": digest_issued(value, self._keys.peppers.current),
            "pepper_version": self._keys.peppers.current_version,
            "created_unix_us": read_unix_us(self._clock),
        }
        async with self._change(Action.OPERATOR_CREATE, moves_epoch=False) as change:
            result = await change.connection.execute(
                insert(operators).values(row).returning(operators)
            )
            change.note(operator_id, name=name)
            return IssuedOperator(operator=_to_operator(result.one()), value=value)

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        self._require_platform()
        query = select(operators).order_by(operators.c.created_unix_us, operators.c.operator_id)
        async with self._database.read() as connection:
            return [_to_operator(row) for row in await connection.execute(query)]

    async def delete_operator(self, operator_id: OperatorId) -> None:
        """Its credential is void at once. Raises: `NotFound`, `Conflict` for the last one."""
        self._require_platform()
        if not is_account_id(operator_id):  # 32 hexadecimal digits, too
            raise _create_operator_not_found()
        statement = delete(operators).where(operators.c.operator_id == operator_id)
        async with self._change(Action.OPERATOR_DELETE, moves_epoch=False) as change:
            if (await change.connection.execute(statement)).rowcount == 0:
                raise _create_operator_not_found()
            change.note(operator_id)
            count = await change.connection.execute(select(func.count()).select_from(operators))
            if count.scalar_one() == 0:
                raise Conflict("The last operator cannot be deleted.")


def _create_operator_not_found() -> NotFound:
    return NotFound("There is no operator with this id.", param="operator_id")


def _to_operator(row: Row[Any]) -> Operator:
    """The operator a row describes."""
    return Operator(
        operator_id=OperatorId(row.operator_id),
        name=row.name,
        created_unix_s=row.created_unix_us // 1_000_000,
    )
