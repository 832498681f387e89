"""When API tokens were last used.

Revision: 0009. Adds only: code of revision 0008 runs against it, and notes no use.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.add_column("api_tokens", sa.Column("last_used_unix_s", sa.BigInteger))


def downgrade() -> None:
    """The same step back."""
    op.drop_column("api_tokens", "last_used_unix_s")
