"""Requests that are handed in together and answered when there is room.

Revision: 0007. Adds only: code of revision 0006 runs against it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("due_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batches")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_batches_account_id")
        ),
    )
    op.create_index(op.f("ix_batches_account_id"), "batches", ["account_id"])
    op.create_index(op.f("ix_batches_expires_unix_ms"), "batches", ["expires_unix_ms"])
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("item_index", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        sa.Column("turn_unix_us", sa.BigInteger, nullable=False),
        sa.Column("held_until_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(100)),
        sa.Column("request_id", sa.String(36)),
        sa.Column("num_lost", sa.Integer, nullable=False),
        sa.Column("sealed_input", sa.LargeBinary),
        sa.Column("sealed_output", sa.LargeBinary),
        sa.PrimaryKeyConstraint("batch_id", "item_index", name=op.f("pk_batch_items")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name=op.f("fk_batch_items_batch_id")
        ),
    )
    for columns in (
        ["is_done", "turn_unix_us"],
        ["account_id", "is_done", "turn_unix_us"],
        ["owner"],
    ):
        name = op.f("_".join(("ix_batch_items", *columns)))
        op.create_index(name, "batch_items", columns)


def downgrade() -> None:
    """The same step back."""
    op.drop_table("batch_items")
    op.drop_table("batches")
