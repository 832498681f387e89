"""Operators in the database: `OperatorDirectory` on SQLAlchemy.

Owns the statements on `operators`. Their credentials have a prefix of their own, so that no API
token can ever pass for one. Read next: `tenancy.directory`.
"""

from typing import Any

from sqlalchemy import Row, insert, select

from contracts.ids import OperatorId
from tenancy.interfaces import IssuedOperator, Operator
from tenancy.sources import create_id, read_unix_us
from tenancy.store import Store
from tenancy.tables import operators
from tenancy.tokens.digests import digest_issued, list_presented_digests
from tenancy.tokens.format import CredentialKind, create_credential
from tenancy.validation import check_name


class OperatorStore(Store):
    """Creates, finds and lists operators."""

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        value = create_credential(CredentialKind.OPERATOR, self._randomness)
        row = {
            "operator_id": create_id(self._randomness),
            "name": check_name(name),
            "digest": digest_issued(value, self._key_ring.peppers.current),
            "pepper_version": self._key_ring.peppers.current_version,
            "created_unix_us": read_unix_us(self._clock),
        }
        async with self._database.write() as connection:
            result = await connection.execute(insert(operators).values(row).returning(operators))
            return IssuedOperator(operator=_to_operator(result.one()), value=value)

    async def find_operator(self, value: str) -> Operator | None:
        """The operator whose credential has this value; None when unknown or malformed."""
        digests = list_presented_digests(CredentialKind.OPERATOR, value, self._key_ring.peppers)
        if not digests:
            return None
        query = select(operators).where(operators.c.digest.in_(digests))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _to_operator(row)

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        query = select(operators).order_by(operators.c.created_unix_us, operators.c.operator_id)
        async with self._database.read() as connection:
            return [_to_operator(row) for row in await connection.execute(query)]


def _to_operator(row: Row[Any]) -> Operator:
    """The operator a row describes."""
    return Operator(
        operator_id=OperatorId(row.operator_id),
        name=row.name,
        created_unix_s=row.created_unix_us // 1_000_000,
    )
