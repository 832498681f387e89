"""What gateways alone ask of the database besides credentials: prices, drains, uses of
tokens, usage, budgets, batches, payload logs, finetunes, the claim.

Read next: `tenancy.usage.ledger`, `tenancy.usage.roll_up`, `tenancy.usage.budgets`.
"""

from tenancy.batches.store import BatchStore
from tenancy.finetunes.lookup import FinetuneLookup
from tenancy.interfaces import ProcessClaim
from tenancy.nodes.store import NodeDrainList
from tenancy.payloads.store import PayloadKeeper
from tenancy.prices.store import PriceList
from tenancy.process_claim import create_process_claim
from tenancy.tokens.uses import TokenUseStore
from tenancy.usage.budgets import BudgetStore
from tenancy.usage.export_store import ExportStore
from tenancy.usage.roll_up import RollUpStore
from tenancy.usage.summaries import SummaryStore


class GatewayStore(
    PriceList,
    NodeDrainList,
    TokenUseStore,
    ExportStore,
    RollUpStore,
    SummaryStore,
    BudgetStore,
    BatchStore,
    PayloadKeeper,
    FinetuneLookup,
):
    """The part of tenancy that gateways read and write while requests are served."""

    def create_process_claim(self) -> ProcessClaim:
        """The right to be the only gateway process here; not acquired yet."""
        return create_process_claim(self._database)
