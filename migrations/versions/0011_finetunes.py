"""Adapters that accounts have uploaded, with their files in pieces.

Revision: 0011. Adds only: code of revision 0010 runs against it. An account that a gateway of that
revision purges leaves its finetunes behind, which nothing can read without the account's key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    op.create_table(
        "finetunes",
        sa.Column("finetune_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("description", sa.String(1000)),
        sa.Column("is_public", sa.Boolean, nullable=False),
        sa.Column("created_unix_us", sa.BigInteger, nullable=False),
        sa.Column("modified_unix_us", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.Integer),
        sa.Column("alpha", sa.Double),
        sa.Column("divides_by_root", sa.Boolean),
        sa.Column("upload_id", sa.String(32)),
        sa.Column("weights_sha256", sa.LargeBinary(32)),
        sa.Column("num_bytes", sa.BigInteger),
        sa.Column("weights_rank", sa.Integer),
        sa.PrimaryKeyConstraint("finetune_id", name=op.f("pk_finetunes")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_finetunes_account_id")
        ),
    )
    op.create_table(
        "finetune_uploads",
        sa.Column("upload_id", sa.String(32), nullable=False),
        sa.Column("finetune_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("held_until_unix_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("upload_id", name=op.f("pk_finetune_uploads")),
    )
    op.create_table(
        "finetune_pieces",
        sa.Column("upload_id", sa.String(32), nullable=False),
        sa.Column("piece_index", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("upload_id", "piece_index", name=op.f("pk_finetune_pieces")),
    )
    for table, columns, is_unique in (
        ("finetunes", ["account_id", "name"], True),
        ("finetunes", ["weights_sha256"], False),
        ("finetune_uploads", ["finetune_id"], False),
        ("finetune_uploads", ["held_until_unix_ms"], False),
    ):
        name = op.f("_".join(("ix", table, *columns)))
        op.create_index(name, table, columns, unique=is_unique)
    if op.get_bind().dialect.name == "postgresql":
        # What is sealed does not get smaller: no time is to be lost on trying.
        op.execute("ALTER TABLE finetune_pieces ALTER COLUMN sealed SET STORAGE EXTERNAL")


def downgrade() -> None:
    """The same step back."""
    for table in ("finetune_pieces", "finetune_uploads", "finetunes"):
        op.drop_table(table)
