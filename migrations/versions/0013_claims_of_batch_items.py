"""How often an item of a batch was claimed, beside how often its run was lost.

Revision: 0013. Adds only: code of revision 0012 runs against it, and counts losses when it claims.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    column = sa.Column("num_claims", sa.Integer, nullable=False, server_default="0")
    op.add_column("batch_items", column)


def downgrade() -> None:
    """The same step back."""
    op.drop_column("batch_items", "num_claims")
