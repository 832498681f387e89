"""The tables of tenancy as SQLAlchemy sees them; `migrations/` brings databases to this state.

Owns columns, keys and constraint names; must not know queries. Times are microseconds since 1970
where they order rows (`…_us`), else seconds. Read next: `tenancy.accounts.store`.
"""

from enum import StrEnum
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    column,
)

from contracts.grant import RetentionClass
from tenancy.interfaces import AccountStatus, ApiTokenStatus
from tenancy.validation import MAX_NAME_LENGTH

ID_LENGTH: Final = 32
DIGEST_BYTES: Final = 32
EPOCH_ID: Final = 1
"""Key of the only row of `tenancy_epoch`."""

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
    Column("master_key_version", Integer, nullable=False),  # the one the cache salt comes from
    Column("retention", String(16), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("allowed_regions", JSON(none_as_null=True)),  # list of region ids; NULL: any region
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
    Column("permissions", JSON, nullable=False),  # sorted list of permission names
    Column("digest", LargeBinary(DIGEST_BYTES), nullable=False, unique=True),
    Column("pepper_version", Integer, nullable=False),  # the one the digest is made with
    Column("issued_unix_us", BigInteger, nullable=False),
    Column("not_before_unix_s", BigInteger),
    Column("expires_unix_s", BigInteger),
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
