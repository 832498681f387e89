"""The usage ledger, its sums and the slices of budgets.

Revision: 0004. Adds only: code of revision 0003 runs against it. On PostgreSQL the ledger is
partitioned by month; two functions make and drop partitions, so that no program builds statements.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SUMS = (
    "num_requests",
    "num_uncached",
    "num_cached",
    "num_output",
    "num_reasoning",
    "cost_nano",
    "num_microneurons",
)

ENSURE = """
CREATE FUNCTION hearth_ensure_usage_partition(a_day integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first date := date_trunc('month', date '1970-01-01' + a_day)::date;
    last date := (first + interval '1 month')::date;
    part text := 'usage_ledger_' || to_char(first, 'YYYYMM');
BEGIN
    IF to_regclass(part) IS NULL THEN
        PERFORM pg_advisory_xact_lock(x'484541525448'::bigint + 1);
        EXECUTE format(
            'CREATE TABLE IF NOT EXISTS %I PARTITION OF usage_ledger FOR VALUES FROM (%s) TO (%s)',
            part, first - date '1970-01-01', last - date '1970-01-01'
        );
    END IF;
END $$
"""
DROP_BEFORE = """
CREATE FUNCTION hearth_drop_usage_before(a_day integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part text;
    num_dropped integer := 0;
BEGIN
    FOR part IN
        SELECT child.relname FROM pg_inherits
        JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = 'usage_ledger'::regclass
        AND (to_date(right(child.relname, 6), 'YYYYMM') + interval '1 month')::date
            <= date '1970-01-01' + a_day
    LOOP
        EXECUTE format('DROP TABLE %I', part);
        num_dropped := num_dropped + 1;
    END LOOP;
    RETURN num_dropped;
END $$
"""


def upgrade() -> None:
    """One step forward."""
    _create_ledger()
    _create_sums("usage_hourly", "hour")
    _create_sums("usage_daily", "day")
    _create_pending()
    _create_slices()
    if op.get_context().dialect.name == "postgresql":
        op.execute(ENSURE)
        op.execute(DROP_BEFORE)


def downgrade() -> None:
    """The same step back."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION hearth_drop_usage_before(integer)")
        op.execute("DROP FUNCTION hearth_ensure_usage_partition(integer)")
    for table in ("budget_slices", "usage_pending", "usage_daily", "usage_hourly", "usage_ledger"):
        op.drop_table(table)


def _create_ledger() -> None:
    op.create_table(
        "usage_ledger",
        sa.Column("day", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("request_id", sa.String(36), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("node_id", sa.String(63)),
        sa.Column("region", sa.String(63)),
        sa.Column("gateway_id", sa.String(63), nullable=False),
        sa.Column("finished_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS[1:5]),
        sa.Column("price_version", sa.Integer),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS[5:]),
        sa.PrimaryKeyConstraint("day", "request_id", name=op.f("pk_usage_ledger")),
        postgresql_partition_by="RANGE (day)",
    )
    columns = ["account_id", "day", "request_id"]
    op.create_index(op.f("ix_usage_ledger_account_id_day_request_id"), "usage_ledger", columns)


def _create_sums(table: str, period: str) -> None:
    op.create_table(
        table,
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column(period, sa.Integer, nullable=False, autoincrement=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(
            "account_id", period, "model", "api_token_id", name=op.f(f"pk_{table}")
        ),
    )


def _create_pending() -> None:
    op.create_table(
        "usage_pending",
        sa.Column("pending_id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("pending_id", name=op.f("pk_usage_pending")),
    )
    op.create_index(
        op.f("ix_usage_pending_account_id_hour"), "usage_pending", ["account_id", "hour"]
    )


def _create_slices() -> None:
    op.create_table(
        "budget_slices",
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("api_token_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("period", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("remaining", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "account_id", "api_token_id", "model", "kind", "period", "owner",
            name=op.f("pk_budget_slices"),
        ),
    )  # fmt: skip
    op.create_index(op.f("ix_budget_slices_owner"), "budget_slices", ["owner"])
