"""What one model's requests have of the node's adapters.

Owns which adapters the model takes; must not know prompts or streams.
Read next: `shelf`, `gpu_pool.server.served_model` (the caller).
"""

from contracts.errors import AdapterUnsupported, InvariantBroken
from contracts.grant import Grant
from contracts.inference import GenerateRequest
from gpu_pool.server.adapters.piece_line import PieceLine
from gpu_pool.server.adapters.shelf import AdapterLease, AdapterShelf
from gpu_pool.server.hosted_core import HostedCore


class AdapterSupply:
    """One model's."""

    def __init__(self, core: HostedCore, shelf: AdapterShelf) -> None:
        """`shelf` is the node's."""
        self._core = core
        self._shelf = shelf

    @property
    def max_rank(self) -> int:
        """The largest rank that the model takes, as its core says; before it was loaded once, as
        its settings do: a model that nobody asks for would never be loaded.
        """
        ready = self._core.ready
        return self._core.facts.expected_adapter_rank if ready is None else ready.max_adapter_rank

    def check(self, request: GenerateRequest) -> None:
        """Raises `AdapterUnsupported` for an adapter that the model does not take."""
        ref, most = request.adapter, self.max_rank
        if ref is None or ref.rank <= most:
            return
        if not most:
            raise AdapterUnsupported("This model takes no LoRA adapters.", param="lora")
        raise AdapterUnsupported(
            f"This model takes LoRA adapters of at most rank {most}, and this one has {ref.rank}.",
            param="lora",
        )

    def find(self, request: GenerateRequest, grant: Grant) -> AdapterLease | None:
        """The file of the request's adapter, if it is here."""
        ref = request.adapter
        return None if ref is None else self._shelf.find(ref, grant.account_id)

    async def obtain(
        self, request: GenerateRequest, grant: Grant, line: PieceLine | None
    ) -> AdapterLease | None:
        """The file, as soon as it is here; None where the request has no adapter.

        Raises: what `AdapterShelf.obtain` does.
        """
        if request.adapter is None:
            return None
        if line is None:
            raise InvariantBroken("A request with an adapter has no way to its file.")
        return await self._shelf.obtain(request.adapter, grant.account_id, line)
