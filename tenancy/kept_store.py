"""What an account keeps here of its own, as it changes it: two stores in one.

Read next: `tenancy.payloads.administration`, `tenancy.finetunes.store`.
"""

from tenancy.finetunes.store import FinetuneStore
from tenancy.payloads.administration import PayloadLogStore


class KeptStore(PayloadLogStore, FinetuneStore):
    """Payload logs and finetunes."""
