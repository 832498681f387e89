"""Where else a request was computed, beside the node that had it last, and so an item of a batch.

Revision: 0014. Adds only: code of revision 0013 runs against it, and leaves both columns empty. In
the ledger that says that it did not tell.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TABLES = ("usage_ledger", "batch_items")


def upgrade() -> None:
    """One step forward."""
    for table in _TABLES:
        op.add_column(table, sa.Column("earlier_places", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """The same step back."""
    for table in _TABLES:
        op.drop_column(table, "earlier_places")
