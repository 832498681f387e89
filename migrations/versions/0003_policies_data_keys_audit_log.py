"""Policies and conditions of API tokens, model lists, data keys, members and the audit log.

Revision: 0003, after 0002. It only adds, and everything it adds to older tables may be left out:
the version before this one goes on working on the new schema.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FIRST_HASH = bytes(32)


def upgrade() -> None:
    """One step forward."""
    with op.batch_alter_table("accounts") as accounts:
        accounts.add_column(sa.Column("allowed_models", sa.JSON(none_as_null=True)))
        accounts.add_column(sa.Column("purged_unix_us", sa.BigInteger))
    with op.batch_alter_table("api_tokens") as api_tokens:
        api_tokens.add_column(sa.Column("policies", sa.JSON(none_as_null=True)))
        api_tokens.add_column(sa.Column("condition", sa.JSON(none_as_null=True)))
        api_tokens.add_column(sa.Column("modified_unix_us", sa.BigInteger))
    _create_data_keys()
    _create_members()
    _create_audit_log()
    _create_audit_chain()


def downgrade() -> None:
    """The same step back. Policies are lost, what they came to is kept."""
    op.drop_table("audit_chain")
    op.drop_table("audit_log")
    op.drop_table("members")
    op.drop_table("data_keys")
    with op.batch_alter_table("api_tokens") as api_tokens:
        api_tokens.drop_column("modified_unix_us")
        api_tokens.drop_column("condition")
        api_tokens.drop_column("policies")
    with op.batch_alter_table("accounts") as accounts:
        accounts.drop_column("purged_unix_us")
        accounts.drop_column("allowed_models")


def _create_data_keys() -> None:
    op.create_table(
        "data_keys",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        sa.Column("master_key_version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_data_keys")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_data_keys_account_id")
        ),
    )


def _create_members() -> None:
    op.create_table(
        "members",
        sa.Column("member_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("sealed_email", sa.LargeBinary, nullable=False),
        sa.Column("created_unix_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("member_id", name=op.f("pk_members")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_members_account_id")
        ),
    )
    op.create_index(
        op.f("ix_members_account_id_created_unix_us"), "members", ["account_id", "created_unix_us"]
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("sequence", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("occurred_unix_us", sa.BigInteger, nullable=False),
        sa.Column("account_id", sa.String(32)),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor_id", sa.String(100), nullable=False),
        sa.Column("actor_account_id", sa.String(32)),
        sa.Column("actor_address", sa.String(64)),
        sa.Column("request_id", sa.String(36)),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("resource_id", sa.String(64), nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_log")),
    )
    op.create_index(
        op.f("ix_audit_log_account_id_sequence"), "audit_log", ["account_id", "sequence"]
    )


def _create_audit_chain() -> None:
    chain = op.create_table(
        "audit_chain",
        sa.Column("chain_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("chain_id", name=op.f("pk_audit_chain")),
        sa.CheckConstraint("chain_id = 1", name=op.f("ck_audit_chain_one_row")),
    )
    op.bulk_insert(chain, [{"chain_id": 1, "sequence": 0, "hash": FIRST_HASH}])
