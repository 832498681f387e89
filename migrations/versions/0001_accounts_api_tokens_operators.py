"""Accounts, API tokens, operators and the epoch that invalidates cached principals.

Revision: 0001, the first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One step forward."""
    _create_accounts()
    _create_api_tokens()
    _create_operators()
    _create_epoch()


def downgrade() -> None:
    """The same step back."""
    op.drop_table("tenancy_epoch")
    op.drop_table("operators")
    op.drop_table("api_tokens")
    op.drop_table("accounts")


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_unix_us", sa.BigInteger, nullable=False),
        sa.Column("cache_salt_generation", sa.Integer, nullable=False),
        sa.Column("master_key_version", sa.Integer, nullable=False),
        sa.Column("retention", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("allowed_regions", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_accounts")),
        sa.CheckConstraint("status IN ('active', 'suspended')", name=op.f("ck_accounts_status")),
        sa.CheckConstraint("retention IN ('standard', 'none')", name=op.f("ck_accounts_retention")),
    )


def _create_api_tokens() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("hint", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("permissions", sa.JSON, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_version", sa.Integer, nullable=False),
        sa.Column("issued_unix_us", sa.BigInteger, nullable=False),
        sa.Column("not_before_unix_s", sa.BigInteger),
        sa.Column("expires_unix_s", sa.BigInteger),
        sa.PrimaryKeyConstraint("api_token_id", name=op.f("pk_api_tokens")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_api_tokens_account_id")
        ),
        sa.UniqueConstraint("digest", name=op.f("uq_api_tokens_digest")),
        sa.CheckConstraint("status IN ('active', 'disabled')", name=op.f("ck_api_tokens_status")),
    )
    op.create_index(
        op.f("ix_api_tokens_account_id_issued_unix_us"),
        "api_tokens",
        ["account_id", "issued_unix_us"],
    )


def _create_operators() -> None:
    op.create_table(
        "operators",
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_version", sa.Integer, nullable=False),
        sa.Column("created_unix_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("operator_id", name=op.f("pk_operators")),
        sa.UniqueConstraint("digest", name=op.f("uq_operators_digest")),
    )


def _create_epoch() -> None:
    epoch = op.create_table(
        "tenancy_epoch",
        sa.Column("epoch_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("epoch_id", name=op.f("pk_tenancy_epoch")),
        sa.CheckConstraint("epoch_id = 1", name=op.f("ck_tenancy_epoch_one_row")),
    )
    op.bulk_insert(epoch, [{"epoch_id": 1, "epoch": 1}])
