"""The first step after a wake, which computes with weights as they come.

A model goes through its parts by a sequence of them. For one step that sequence is another, which
waits for a part's weights before it hands the part out; nothing of this is left in steps after it.
Must not know devices. Read next: `gpu_pool.weights.landing`, `worker` (the caller).
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

from gpu_pool.models.network import CausalModel
from gpu_pool.plan import ForwardPlan
from gpu_pool.weights.landing import Landing


class ModelLanding:
    """One model whose weights are on their way."""

    def __init__(self, model: CausalModel, landing: Landing) -> None:
        """The landing's portions are those of the model's passage."""
        self._model = model
        self._landing = landing

    @contextmanager
    def awaited_by(self, plan: ForwardPlan) -> Generator[None]:
        """A step that is begun inside waits for each part's weights; afterwards all are there.

        A plan that computes but one token for everybody waits for all of them first: it may be
        replayed from a recording, which asks nobody. Raises: `OSError` when some did not come.
        """
        if all(item.num_tokens == 1 for item in plan.scheduled):
            self.finish()
            yield
            return
        parts = self._model.passage
        self._landing.wait_for(0)
        self._model.passage = _AwaitedParts(parts, self._landing)
        try:
            yield
        finally:
            self._model.passage = parts
        self.finish()

    def finish(self) -> None:
        """Waits for all. Raises: as `awaited_by`."""
        self._landing.finish()

    def abandon(self) -> None:
        """Ends it: nothing is computed with these weights any more."""
        self._landing.abandon()


class _AwaitedParts(Sequence[Any]):
    """The parts of a model, each handed out when its weights are there."""

    def __init__(self, parts: Sequence[Any], landing: Landing) -> None:
        """Portions of the landing are parts."""
        self._parts = parts
        self._landing = landing

    def __len__(self) -> int:
        """As many as ever."""
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Only what goes through all of them in order has a landing to wait for."""
        raise AssertionError("a passage is gone through, not looked into")

    def __iter__(self) -> Iterator[Any]:
        """Raises: `OSError` when a part's weights did not come."""
        for portion, part in enumerate(self._parts):
            self._landing.wait_for(portion)
            yield part
