"""All that one actor may change, on a database: every store in one.

Read next: the stores.
"""

from tenancy.accounts.store import AccountStore
from tenancy.audit.store import AuditStore
from tenancy.encryption.store import DataKeyStore
from tenancy.kept_store import KeptStore
from tenancy.members.store import MemberStore
from tenancy.nodes.store import NodeDrainStore
from tenancy.operators.store import OperatorStore
from tenancy.placement.store import PlacementRuleStore
from tenancy.prices.store import PriceStore
from tenancy.quotas.store import QuotaStore
from tenancy.tokens.store import ApiTokenStore
from tenancy.usage.retention import UsageRetentionStore


class SqlAdministration(
    AccountStore,
    ApiTokenStore,
    MemberStore,
    OperatorStore,
    QuotaStore,
    PriceStore,
    UsageRetentionStore,
    PlacementRuleStore,
    NodeDrainStore,
    KeptStore,
    AuditStore,
    DataKeyStore,
):
    """`Administration` on SQLite or PostgreSQL."""
