"""What was asked and answered, for accounts that want it kept.

Revision: 0008. Adds only: code of revision 0007 runs against it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.add_column("accounts", sa.Column("payload_days", sa.Integer))
    op.create_table(
        "payload_logs",
        sa.Column("request_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("route", sa.String(64), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("began_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("is_cut", sa.Boolean, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_payload_logs")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_payload_logs_account_id")
        ),
    )
    for columns in (["account_id", "request_id"], ["expires_unix_ms"]):
        name = op.f("_".join(("ix_payload_logs", *columns)))
        op.create_index(name, "payload_logs", columns)


def downgrade() -> None:
    """The same step back."""
    op.drop_table("payload_logs")
    op.drop_column("accounts", "payload_days")
