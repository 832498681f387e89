"""From what a request says of an adapter to what nodes compute it with.

Owns whose finetunes are meant, and what is remembered of that for as long as the store's epoch
stands, as `gateway.auth.principal_cache` does for principals. Requests without an adapter never
come here. Must not know what a dialect's bodies look like. Read next: `contracts.finetunes`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from contracts.adapters import AdapterRef
from contracts.errors import (
    AdapterIncomplete,
    AdapterUnsupported,
    InvariantBroken,
    NotFound,
)
from contracts.finetunes import Finetune
from contracts.ids import AccountId, ModelName
from contracts.inference import GenerateRequest
from gateway.dialects.dialect import ParsedRequest
from gateway.finetunes.adapter_config import CONFIG_FILE
from gateway.finetunes.weights_header import WEIGHTS_FILE
from tenancy.finetunes.interface import FinetuneDirectory

FIELD: Final = "lora"
MAX_CONCURRENT_LOOKUPS: Final = 4
_Key = tuple[AccountId, str]
_ValueT = TypeVar("_ValueT")


class AdapterResolver:
    """Finds finetunes; asks the store once per account, name and epoch."""

    def __init__(
        self,
        directory: FinetuneDirectory,
        find_max_rank: Callable[[ModelName], int | None],
        is_trusted: Callable[[], bool],
        max_cached: int,
    ) -> None:
        """`find_max_rank` knows what adapters a model takes, 0 for none, and None for a model that
        nobody offers; `is_trusted` is False once nobody would tell of changes in the store. So many
        are remembered, and as many that there are not. Have `forget` called with each epoch.
        """
        self._directory = directory
        self._find_max_rank = find_max_rank
        self._is_trusted = is_trusted
        self._max_cached = max_cached
        self._found: dict[_Key, Finetune] = {}
        self._missing: dict[_Key, None] = {}
        self._lookups: dict[_Key, asyncio.Task[Finetune | None]] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)
        self._generation = 0

    async def resolve(self, account_id: AccountId, parsed: ParsedRequest) -> ParsedRequest:
        """The request with the adapter that it names.

        Raises: `NotFound`, `AdapterIncomplete`, `AdapterUnsupported`, `StoreUnavailable`.
        """
        request, name = parsed.request, parsed.lora
        if name is None or not isinstance(request, GenerateRequest):
            raise InvariantBroken("An adapter was looked for that nobody has asked for.")
        max_rank = self._find_max_rank(request.model)
        if max_rank is None:
            return parsed  # whoever admits the request says that there is no such model
        if max_rank == 0:
            raise AdapterUnsupported("This model takes no LoRA adapters.", param=FIELD)
        adapter = await self._find_adapter(account_id, name, request.model)
        if adapter.rank > max_rank:
            raise AdapterUnsupported(
                f"The finetune has rank {adapter.rank}; adapters of this model have at most "
                f"{max_rank}.",
                param=FIELD,
            )
        return replace(parsed, request=replace(request, adapter=adapter))

    async def forget(self) -> None:
        """Something has changed in the store; look-ups under way are not remembered."""
        self._generation += 1
        self._found.clear()
        self._missing.clear()
        self._lookups.clear()

    async def _find_adapter(self, account_id: AccountId, name: str, model: ModelName) -> AdapterRef:
        """Raises: `NotFound`, `AdapterIncomplete`, `AdapterUnsupported`, `StoreUnavailable`."""
        key = (account_id, name)
        finetune = self._found.get(key) if self._is_trusted() else None
        if finetune is None:
            finetune = await self._find(key)
        if finetune is None:
            raise _create_missing()
        if finetune.model != model:
            raise AdapterUnsupported("The finetune is of another model.", param=FIELD)
        adapter = finetune.adapter
        if adapter is None:
            missing = CONFIG_FILE if finetune.config is None else WEIGHTS_FILE
            raise AdapterIncomplete(f"The finetune lacks its {missing}.", param=FIELD)
        return adapter

    async def _find(self, key: _Key) -> Finetune | None:
        """What is not known here, by the store; once for all who ask for the same."""
        if self._is_trusted() and key in self._missing:
            return None
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.create_task(self._load(key, self._generation))
            self._lookups[key] = task
        # Shielded: one client that leaves must not fail the others.
        return await asyncio.shield(task)

    async def _load(self, key: _Key, generation: int) -> Finetune | None:
        """The store's answer, remembered if the generation still stands."""
        try:
            async with self._places:
                finetune = await self._directory.find_finetune(*key)
        finally:
            if self._generation == generation:
                self._lookups.pop(key, None)
        if self._generation == generation and self._is_trusted():
            if finetune is not None:
                _put(self._found, key, finetune, self._max_cached)
            else:
                _put(self._missing, key, None, self._max_cached)
        return finetune


def _create_missing() -> NotFound:
    """The same for what nobody has and for what another account keeps to itself."""
    return NotFound("There is no finetune of this id or name for the account.", param=FIELD)


def _put(known: dict[_Key, _ValueT], key: _Key, value: _ValueT, maximum: int) -> None:
    """Remembers, and drops the oldest beyond the bound."""
    known[key] = value
    if len(known) > maximum:
        del known[next(iter(known))]
