"""A directory of finetunes in memory, which counts what it is asked and can be made to wait."""

import asyncio
from collections.abc import Collection

from contracts.errors import StoreUnavailable
from contracts.finetunes import PIECE_BYTES, AdapterConfig, Finetune, StoredWeights
from contracts.ids import AccountId, FinetuneId, ModelName
from tenancy.finetunes.interface import FinetuneOrder

MODEL = ModelName("@hearth/tests/small")
OWNER, OTHER = AccountId("a" * 32), AccountId("b" * 32)
CONFIG = AdapterConfig(rank=8, alpha=16.0)


def create_finetune(
    number: int = 1,
    *,
    name: str = "mine",
    account_id: AccountId = OWNER,
    is_public: bool = False,
    weights: StoredWeights | None = None,
    config: AdapterConfig | None = CONFIG,
) -> Finetune:
    """A finetune with both files, unless told otherwise."""
    return Finetune(
        finetune_id=FinetuneId(f"{number:08x}" + "-0000" * 3 + "-" + "0" * 12),
        account_id=account_id,
        name=name,
        model=MODEL,
        description=None,
        is_public=is_public,
        created_unix_s=0,
        modified_unix_s=0,
        config=config,
        weights=weights or StoredWeights(sha256=bytes([number]) * 32, num_bytes=100, rank=8),
    )


class FinetunesInMemory:
    """A `FinetuneDirectory` on lists."""

    def __init__(self) -> None:
        self.finetunes: list[Finetune] = []
        self.files: dict[bytes, bytes] = {}
        self.num_asked = 0
        self.is_away = False
        self.gate = asyncio.Event()
        """Answers wait for it."""
        self.gate.set()

    async def find_finetune(self, account_id: AccountId, name: str) -> Finetune | None:
        """One of its own, or by its id a public one."""
        self.num_asked += 1
        found = [
            one
            for one in self.finetunes
            if (one.account_id == account_id and name in (one.finetune_id, one.name))
            or (one.is_public and name == one.finetune_id)
        ]
        await self._answer()
        return found[0] if found else None

    async def list_public_finetune_models(self) -> list[ModelName]:
        """None."""
        return []

    async def list_public_finetunes(
        self,
        models: Collection[ModelName],
        *,
        order: FinetuneOrder = FinetuneOrder.CREATED,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Finetune]:
        """None."""
        return []

    async def read_finetune_piece(self, weights_sha256: bytes, index: int) -> bytes | None:
        """A piece of a file."""
        self.num_asked += 1
        data = self.files.get(weights_sha256)
        await self._answer()
        if data is None:
            return None
        return data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES] or None

    async def drop_finetune_pieces(self) -> int:
        """None."""
        return 0

    async def _answer(self) -> None:
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailable("away")
