"""Jurisdictions that accounts are bound to, and where they prefer to be computed.

Revision: 0012. Adds only: code of revision 0011 runs against it, and knows regions alone. So an
account is to be bound to jurisdictions only once every gateway is of this revision.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COLUMNS = ("allowed_jurisdictions", "preferred_regions", "preferred_jurisdictions")


def upgrade() -> None:
    """One step forward."""
    for name in _COLUMNS:
        op.add_column("accounts", sa.Column(name, sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """The same step back. Who is bound to jurisdictions may go nowhere then, instead of anywhere:
    code of before knows regions alone.
    """
    op.execute("UPDATE accounts SET allowed_regions = '[]' WHERE allowed_jurisdictions IS NOT NULL")
    for name in _COLUMNS:
        op.drop_column("accounts", name)
