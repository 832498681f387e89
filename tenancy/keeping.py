"""What gateways keep for accounts beside money and credentials, as one protocol.

Read next: `tenancy.batches.interface`, `tenancy.payloads.interface`, `tenancy.finetunes.interface`.
"""

from typing import Protocol

from tenancy.batches.interface import BatchStore
from tenancy.finetunes.interface import FinetuneDirectory
from tenancy.payloads.interface import PayloadKeeper


class Keeping(BatchStore, PayloadKeeper, FinetuneDirectory, Protocol):
    """Batches, payload logs and finetunes."""
