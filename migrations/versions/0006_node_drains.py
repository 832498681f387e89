"""Which nodes operators want to get nothing new.

Revision: 0006. Adds only: code of revision 0005 runs against it, and sends requests there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.create_table(
        "node_drains",
        sa.Column("node_id", sa.String(63), nullable=False),
        sa.Column("begun_unix_s", sa.BigInteger, nullable=False),
        sa.Column("move_after_s", sa.BigInteger),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_node_drains")),
    )


def downgrade() -> None:
    """The same step back."""
    op.drop_table("node_drains")
