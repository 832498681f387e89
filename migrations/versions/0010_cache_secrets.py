"""What cache salts follow from, besides the master key: a secret that can be forgotten.

Revision: 0010. Adds only: code of revision 0009 runs against it. Accounts that are there get one
when their salt is rotated; until then their salts stay what they are. While gateways of both
revisions run, an account created or rotated meanwhile has a salt at each, so that its prompts are
computed twice; and what one of revision 0009 rotates or purges keeps its secret.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.add_column("accounts", sa.Column("cache_secret", sa.LargeBinary))


def downgrade() -> None:
    """The same step back."""
    op.drop_column("accounts", "cache_secret")
