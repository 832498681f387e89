"""What operators want of where weights are.

Revision: 0005. Adds only: code of revision 0004 runs against it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.create_table(
        "placement_rules",
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("service_class", sa.String(16), nullable=False),
        sa.Column("tier", sa.String(16)),
        sa.Column("until_unix_s", sa.BigInteger),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_placement_rules")),
    )


def downgrade() -> None:
    """The same step back."""
    op.drop_table("placement_rules")
