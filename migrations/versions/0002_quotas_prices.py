"""Quotas, the price list with the bundled price, and accounts that need not pay.

Revision: 0002. Adds only: code of revision 0001 runs against it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

RATES = tuple(
    f"{unit}_{kind}"
    for unit in ("money", "neurons")
    for kind in ("uncached", "cached", "output", "reasoning")
)


def upgrade() -> None:
    """One step forward."""
    op.add_column(
        "accounts",
        sa.Column("is_metered", sa.Boolean, nullable=False, server_default=sa.true()),
    )
    _create_quotas()
    _create_prices()


def downgrade() -> None:
    """The same step back."""
    op.drop_table("prices")
    op.drop_table("quotas")
    op.drop_column("accounts", "is_metered")


def _create_quotas() -> None:
    op.create_table(
        "quotas",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("requests_per_min", sa.BigInteger),
        sa.Column("tokens_per_min", sa.BigInteger),
        sa.Column("concurrent_streams", sa.BigInteger),
        sa.Column("neurons_per_day", sa.BigInteger),
        sa.Column("spend_nano_per_month", sa.BigInteger),
        sa.PrimaryKeyConstraint("account_id", "api_token_id", "model", name=op.f("pk_quotas")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.account_id"], name=op.f("fk_quotas_account_id")
        ),
    )


def _create_prices() -> None:
    prices = op.create_table(
        "prices",
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in RATES),
        sa.Column("is_ended", sa.Boolean, nullable=False),
        sa.Column("created_unix_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_prices")),
    )
    op.create_index(op.f("ix_prices_model_version"), "prices", ["model", "version"])
    # As in tenancy/prices/bundled.py when this revision was written.
    rates = (10_000_000, 2_500_000, 20_000_000, 20_000_000, 909, 227, 1818, 1818)
    row = dict(zip(RATES, rates, strict=True))
    op.bulk_insert(prices, [{"model": "@hearth/*", "is_ended": False, "created_unix_us": 0, **row}])
