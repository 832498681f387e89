"""Filters of the audit log as conditions of a statement.

Owns how a part that is missing compares: as a value that nobody asks for, so that "not this one"
finds it. Read next: `tenancy.audit.log`.
"""

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, not_

from tenancy.actors import ActorKind
from tenancy.audit.entries import AuditFilter, AuditPart, AuditTerm
from tenancy.tables import audit_log

_COLUMNS: Final = audit_log.c
_PARTS: Final[dict[AuditPart, ColumnElement[Any]]] = {
    AuditPart.SEQUENCE: _COLUMNS.sequence,
    AuditPart.ACTION: _COLUMNS.action,
    AuditPart.ACTOR_KIND: _COLUMNS.actor_kind,
    AuditPart.RESOURCE_ID: _COLUMNS.resource_id,
}
_PARTS_OF_TOKENS: Final[dict[AuditPart, ColumnElement[Any]]] = {
    AuditPart.TOKEN_ID: _COLUMNS.actor_id,
    AuditPart.TOKEN_ADDRESS: func.coalesce(_COLUMNS.actor_address, ""),
    AuditPart.TOKEN_REQUEST_ID: func.coalesce(_COLUMNS.request_id, ""),
}


def list_conditions(wanted: AuditFilter) -> Iterator[ColumnElement[bool]]:
    """What an entry must fulfil to fit `wanted`."""
    if wanted.since_unix_us is not None:
        yield _COLUMNS.occurred_unix_us >= wanted.since_unix_us
    if wanted.before_unix_us is not None:
        yield _COLUMNS.occurred_unix_us < wanted.before_unix_us
    for column, value in (
        (_COLUMNS.account_id, wanted.account_id),
        (_COLUMNS.action, wanted.action),
        (_COLUMNS.actor_id, wanted.actor_id),
        (_COLUMNS.resource_id, wanted.resource_id),
    ):
        if value is not None:
            yield column == value
    for term in wanted.terms:
        is_met = _compare(term)
        yield not_(is_met) if term.is_excluded else is_met


def _compare(term: AuditTerm) -> ColumnElement[bool]:
    """True, never unknown, for entries whose part is one of the term's values."""
    if term.part in _PARTS:
        return _PARTS[term.part].in_(term.values)
    is_of_token = _COLUMNS.actor_kind == ActorKind.API_TOKEN
    return and_(is_of_token, _PARTS_OF_TOKENS[term.part].in_(term.values))
