"""The tables of tenancy as SQLAlchemy sees them; `migrations/` brings databases to this state.

Owns columns, keys and constraint names; must not know queries. Times are microseconds since 1970
where they order rows (`…_us`), else seconds. Read next: `tenancy.accounts.store`.
"""

from enum import StrEnum
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    column,
    true,
)

from contracts.finetunes import MAX_FINETUNE_NAME, MAX_FINETUNE_TEXT
from contracts.grant import RetentionClass
from contracts.ids import MAX_MODEL_NAME_LENGTH
from tenancy.interfaces import AccountStatus, ApiTokenStatus
from tenancy.validation import MAX_NAME_LENGTH

ID_LENGTH: Final = 32
NODE_ID_LENGTH: Final = 63
DIGEST_BYTES: Final = 32
EPOCH_ID: Final = 1
"""Key of the only row of `tenancy_epoch`."""
AUDIT_CHAIN_ID: Final = 1
"""Key of the only row of `audit_chain`."""

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _one_of(name: str, *members: StrEnum) -> CheckConstraint:
    """A constraint that admits `members` only in column `name`, whoever writes."""
    values = [str(member) for member in members]
    return CheckConstraint(column(name, String).in_(values), name=name)


accounts: Final = Table(
    "accounts",
    metadata,
    Column("account_id", String(ID_LENGTH), primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_unix_us", BigInteger, nullable=False),
    Column("cache_salt_generation", Integer, nullable=False),
    # Random; replaced with the salt. NULL: of revision 0009 or older, or purged.
    Column("cache_secret", LargeBinary),
    Column("master_key_version", Integer, nullable=False),  # the one the cache salt comes from
    Column("retention", String(16), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("allowed_regions", JSON(none_as_null=True)),  # list of region ids; NULL: any region
    Column("allowed_jurisdictions", JSON(none_as_null=True)),  # list of names; NULL: any
    Column("preferred_regions", JSON(none_as_null=True)),  # list of region ids; NULL: none
    Column("preferred_jurisdictions", JSON(none_as_null=True)),  # list of names; NULL: none
    # False: its use is recorded and costs nothing.
    Column("is_metered", Boolean, nullable=False, server_default=true()),
    Column("allowed_models", JSON(none_as_null=True)),  # list of patterns; NULL: any model
    Column("payload_days", Integer),  # what is asked and answered is kept so long; NULL: not at all
    Column("purged_unix_us", BigInteger),  # the row that keeps the id taken; NULL: it is alive
    _one_of("status", *AccountStatus),
    _one_of("retention", *RetentionClass),
)

api_tokens: Final = Table(
    "api_tokens",
    metadata,
    Column("api_token_id", String(ID_LENGTH), primary_key=True),
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), nullable=False),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("hint", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    # Sorted names of what the policies come to, for the version of Hearth that knew no policies.
    Column("permissions", JSON, nullable=False),
    Column("policies", JSON(none_as_null=True)),  # NULL: one policy that allows `permissions`
    Column("condition", JSON(none_as_null=True)),  # networks; NULL: anywhere
    Column("modified_unix_us", BigInteger),  # NULL: as issued
    Column("digest", LargeBinary(DIGEST_BYTES), nullable=False, unique=True),
    Column("pepper_version", Integer, nullable=False),  # the one the digest is made with
    Column("issued_unix_us", BigInteger, nullable=False),
    Column("not_before_unix_s", BigInteger),
    Column("expires_unix_s", BigInteger),
    Column("last_used_unix_s", BigInteger),  # to the minute; NULL: never, as far as is known
    _one_of("status", ApiTokenStatus.ACTIVE, ApiTokenStatus.DISABLED),  # expiry is never stored
    Index(None, "account_id", "issued_unix_us"),
)

operators: Final = Table(
    "operators",
    metadata,
    Column("operator_id", String(ID_LENGTH), primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("digest", LargeBinary(DIGEST_BYTES), nullable=False, unique=True),
    Column("pepper_version", Integer, nullable=False),
    Column("created_unix_us", BigInteger, nullable=False),
)

tenancy_epoch: Final = Table(
    "tenancy_epoch",
    metadata,
    Column("epoch_id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    CheckConstraint("epoch_id = 1", name="one_row"),
)

quotas: Final = Table(
    "quotas",
    metadata,
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), primary_key=True),
    Column("api_token_id", String(ID_LENGTH), primary_key=True),  # empty: of the whole account
    Column("model", String(MAX_MODEL_NAME_LENGTH), primary_key=True),  # empty: of every model
    Column("requests_per_min", BigInteger),  # NULL is without limit, 0 is nothing at all
    Column("tokens_per_min", BigInteger),
    Column("concurrent_streams", BigInteger),
    Column("neurons_per_day", BigInteger),
    Column("spend_nano_per_month", BigInteger),
)

prices: Final = Table(
    "prices",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),  # a name, or a pattern with *
    Column("money_uncached", BigInteger, nullable=False),  # nano-units per million tokens
    Column("money_cached", BigInteger, nullable=False),
    Column("money_output", BigInteger, nullable=False),
    Column("money_reasoning", BigInteger, nullable=False),
    Column("neurons_uncached", BigInteger, nullable=False),  # neurons per million tokens
    Column("neurons_cached", BigInteger, nullable=False),
    Column("neurons_output", BigInteger, nullable=False),
    Column("neurons_reasoning", BigInteger, nullable=False),
    Column("is_ended", Boolean, nullable=False),  # from here on the model has no price of its own
    Column("created_unix_us", BigInteger, nullable=False),
    Index(None, "model", "version"),
)

placement_rules: Final = Table(
    "placement_rules",
    metadata,
    Column("model", String(MAX_MODEL_NAME_LENGTH), primary_key=True),
    Column("service_class", String(16), nullable=False),
    Column("tier", String(16)),  # NULL leaves it to demand
    Column("until_unix_s", BigInteger),  # when `tier` ends to hold; NULL is never
)

node_drains: Final = Table(
    "node_drains",
    metadata,
    Column("node_id", String(NODE_ID_LENGTH), primary_key=True),
    Column("begun_unix_s", BigInteger, nullable=False),
    Column("move_after_s", BigInteger),  # NULL lets streams go on to their end
)

data_keys: Final = Table(
    "data_keys",
    metadata,
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), primary_key=True),
    Column("wrapped_key", LargeBinary, nullable=False),
    Column("master_key_version", Integer, nullable=False),  # the one that wraps it
)

members: Final = Table(
    "members",
    metadata,
    Column("member_id", String(ID_LENGTH), primary_key=True),
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), nullable=False),
    Column("sealed_email", LargeBinary, nullable=False),  # under the account's data key
    Column("created_unix_us", BigInteger, nullable=False),
    Index(None, "account_id", "created_unix_us"),
)

audit_log: Final = Table(
    "audit_log",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("occurred_unix_us", BigInteger, nullable=False),
    Column("account_id", String(ID_LENGTH)),  # no foreign key: entries outlive what they tell of
    Column("actor_kind", String(16), nullable=False),
    Column("actor_id", String(MAX_NAME_LENGTH), nullable=False),
    Column("actor_account_id", String(ID_LENGTH)),
    Column("actor_address", String(64)),
    Column("request_id", String(36)),
    Column("action", String(64), nullable=False),
    Column("resource_id", String(64), nullable=False),
    Column("details", Text, nullable=False),  # a JSON object, as the bytes that are hashed
    Column("hash", LargeBinary(DIGEST_BYTES), nullable=False),
    Index(None, "account_id", "sequence"),
)

audit_chain: Final = Table(
    "audit_chain",
    metadata,
    Column("chain_id", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),  # of the newest entry
    Column("hash", LargeBinary(DIGEST_BYTES), nullable=False),
    CheckConstraint("chain_id = 1", name="one_row"),
)

USAGE_SUMS: Final = (
    "num_requests",
    "num_uncached",
    "num_cached",
    "num_output",
    "num_reasoning",
    "cost_nano",
    "num_microneurons",
)


def _usage_sums() -> list[Column[int]]:
    """The columns that are added up."""
    return [Column(name, BigInteger, nullable=False) for name in USAGE_SUMS]


# On PostgreSQL partitioned by month; `hearth_ensure_usage_partition` makes the partitions.
usage_ledger: Final = Table(
    "usage_ledger",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),  # of the request id, since 1970
    Column("request_id", String(36), primary_key=True),
    Column("account_id", String(ID_LENGTH), nullable=False),
    Column("api_token_id", String(ID_LENGTH), nullable=False),
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),
    Column("node_id", String(63)),
    Column("region", String(63)),
    Column("gateway_id", String(63), nullable=False),
    Column("finished_unix_ms", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("num_uncached", BigInteger, nullable=False),
    Column("num_cached", BigInteger, nullable=False),
    Column("num_output", BigInteger, nullable=False),
    Column("num_reasoning", BigInteger, nullable=False),
    Column("price_version", Integer),  # NULL: nothing was charged
    Column("cost_nano", BigInteger, nullable=False),
    Column("num_microneurons", BigInteger, nullable=False),
    # Where else it was computed before that; NULL: unknown.
    Column("earlier_places", JSON(none_as_null=True)),
    Index(None, "account_id", "day", "request_id"),
    postgresql_partition_by="RANGE (day)",
)

# Sums of what was added to the ledger and is not in the tables below yet.
usage_pending: Final = Table(
    "usage_pending",
    metadata,
    Column("pending_id", String(ID_LENGTH), primary_key=True),
    Column("account_id", String(ID_LENGTH), nullable=False),
    Column("hour", Integer, nullable=False),
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),
    Column("api_token_id", String(ID_LENGTH), nullable=False),
    *_usage_sums(),
    Index(None, "account_id", "hour"),
)

usage_hourly: Final = Table(
    "usage_hourly",
    metadata,
    Column("account_id", String(ID_LENGTH), primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False),  # since 1970
    Column("model", String(MAX_MODEL_NAME_LENGTH), primary_key=True),
    Column("api_token_id", String(ID_LENGTH), primary_key=True),
    *_usage_sums(),
)

usage_daily: Final = Table(
    "usage_daily",
    metadata,
    Column("account_id", String(ID_LENGTH), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # since 1970
    Column("model", String(MAX_MODEL_NAME_LENGTH), primary_key=True),
    Column("api_token_id", String(ID_LENGTH), primary_key=True),
    *_usage_sums(),
)

# What gateways may still spend of budgets without asking again.
budget_slices: Final = Table(
    "budget_slices",
    metadata,
    Column("account_id", String(ID_LENGTH), primary_key=True),
    Column("api_token_id", String(ID_LENGTH), primary_key=True),  # empty: of the whole account
    Column("model", String(MAX_MODEL_NAME_LENGTH), primary_key=True),  # empty: of every model
    Column("kind", String(16), primary_key=True),
    Column("period", Integer, primary_key=True, autoincrement=False),
    Column("owner", String(100), primary_key=True),  # one life of a gateway process
    Column("remaining", BigInteger, nullable=False),
    Column("expires_unix_ms", BigInteger, nullable=False),
    Index(None, "owner"),
)

# Requests that wait for idle capacity, and their answers.
batches: Final = Table(
    "batches",
    metadata,
    Column("batch_id", String(36), primary_key=True),
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), nullable=False),
    Column("api_token_id", String(ID_LENGTH), nullable=False),  # it may be deleted meanwhile
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),
    Column("num_bytes", BigInteger, nullable=False),  # of all that is asked
    Column("due_unix_ms", BigInteger, nullable=False),  # items that have not run by then fail
    Column("expires_unix_ms", BigInteger, nullable=False),  # then all of it is deleted
    Index(None, "account_id"),
    Index(None, "expires_unix_ms"),
)

batch_items: Final = Table(
    "batch_items",
    metadata,
    Column("batch_id", String(36), ForeignKey("batches.batch_id"), primary_key=True),
    Column("item_index", Integer, primary_key=True, autoincrement=False),
    Column("account_id", String(ID_LENGTH), nullable=False),
    Column("is_done", Boolean, nullable=False),
    # Items are served in this order. It is when an item was handed in, and a little behind the one
    # before it of the same account, so that accounts take turns.
    Column("turn_unix_us", BigInteger, nullable=False),
    Column("held_until_unix_ms", BigInteger, nullable=False),  # nobody may claim it before
    Column("owner", String(100)),  # one life of a gateway process that runs it
    Column("request_id", String(36)),  # under which it may have been billed already
    # How often whoever ran it was lost. Of what has a request id a claim counts one more.
    Column("num_lost", Integer, nullable=False),
    Column("num_claims", Integer, nullable=False, server_default="0"),  # under which it ran
    # Where runs that were put back have been, and `num_lost` as it is if no others were lost.
    Column("earlier_places", JSON(none_as_null=True)),
    Column("sealed_input", LargeBinary),  # under the account's data key; NULL once it is done
    Column("sealed_output", LargeBinary),  # likewise; NULL until then
    Index(None, "is_done", "turn_unix_us"),
    Index(None, "account_id", "is_done", "turn_unix_us"),
    Index(None, "owner"),
)

payload_logs: Final = Table(
    "payload_logs",
    metadata,
    Column("request_id", String(36), primary_key=True),
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), nullable=False),
    Column("api_token_id", String(ID_LENGTH), nullable=False),  # it may be deleted meanwhile
    Column("route", String(64), nullable=False),
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),
    Column("status", Integer, nullable=False),
    Column("began_unix_ms", BigInteger, nullable=False),
    Column("expires_unix_ms", BigInteger, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("is_cut", Boolean, nullable=False),
    Column("sealed", LargeBinary, nullable=False),  # under the account's data key
    Index(None, "account_id", "request_id"),
    Index(None, "expires_unix_ms"),
)

finetunes: Final = Table(
    "finetunes",
    metadata,
    Column("finetune_id", String(36), primary_key=True),
    Column("account_id", String(ID_LENGTH), ForeignKey("accounts.account_id"), nullable=False),
    Column("name", String(MAX_FINETUNE_NAME), nullable=False),
    Column("model", String(MAX_MODEL_NAME_LENGTH), nullable=False),
    Column("description", String(MAX_FINETUNE_TEXT)),
    Column("is_public", Boolean, nullable=False),
    Column("created_unix_us", BigInteger, nullable=False),
    Column("modified_unix_us", BigInteger, nullable=False),
    Column("rank", Integer),  # of the configuration; NULL until it is uploaded, as the next two
    Column("alpha", Double),
    Column("divides_by_root", Boolean),
    Column("upload_id", String(ID_LENGTH)),  # whose pieces are the weights; NULL until they are all
    Column("weights_sha256", LargeBinary(DIGEST_BYTES)),  # likewise, as the next two
    Column("num_bytes", BigInteger),
    Column("weights_rank", Integer),
    Index(None, "account_id", "name", unique=True),
    Index(None, "weights_sha256"),
)

# Pieces that do not count: of uploads under way, and of finetunes that are no more. The others are
# those that a finetune names.
finetune_uploads: Final = Table(
    "finetune_uploads",
    metadata,
    Column("upload_id", String(ID_LENGTH), primary_key=True),
    Column("finetune_id", String(36), nullable=False),  # it may be deleted meanwhile
    Column("account_id", String(ID_LENGTH), nullable=False),
    Column("held_until_unix_ms", BigInteger, nullable=False),  # then anybody may delete the pieces
    Index(None, "finetune_id"),
    Index(None, "held_until_unix_ms"),
)

finetune_pieces: Final = Table(
    "finetune_pieces",
    metadata,
    Column("upload_id", String(ID_LENGTH), primary_key=True),
    Column("piece_index", Integer, primary_key=True, autoincrement=False),
    Column("sealed", LargeBinary, nullable=False),  # under the account's data key
)
