"""The ranks of one model over torch.distributed: gloo between CPUs, NCCL between GPUs.

Owns rendezvous, groups and timeouts; must not know networks or plans. Every exchange ends: with an
error when a rank that takes part is gone or `timeout_s` has passed.
Read next: `tensor_group`, `stage_link` (what others see of it).
"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from gpu_pool.parallel.place import RankPlace
from gpu_pool.parallel.stage_link import StageLink
from gpu_pool.parallel.tensor_group import TensorGroup


class RankGroups:
    """This process among the ranks of its model. One per process: torch's groups are global."""

    def __init__(
        self,
        place: RankPlace,
        device: torch.device,
        rendezvous: Path,
        *,
        join_timeout_s: float,
        timeout_s: float,
    ) -> None:
        """Returns when all ranks have met at the file `rendezvous`, which is new and theirs alone.

        Raises: `RuntimeError` when one has not come in time.
        """
        self.place = place
        self._device = device
        num_ranks = place.shape.num_ranks
        store = FileStore(str(rendezvous), num_ranks)
        store.set_timeout(timedelta(seconds=join_timeout_s))
        backend = "nccl" if device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_s)
        # All have to be there before anything waits for them with the longer patience of steps.
        _wait_for_all(store, place, join_timeout_s)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=num_ranks, timeout=timeout
        )
        first = place.stage * place.shape.tensor
        stages = [
            dist.new_group(list(range(start, start + place.shape.tensor)), timeout=timeout)
            for start in range(0, num_ranks, place.shape.tensor)
        ]
        own = stages[place.stage]
        assert isinstance(own, dist.ProcessGroup), "this rank is in its own stage"
        self.tensor: TensorGroup = StageGroup(own, place, first)

    def agree_on_least(self, value: int) -> int:
        """The smallest of all ranks' values."""
        least = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least.item())

    def create_stage_link(self, hidden_size: int, dtype: torch.dtype) -> StageLink:
        """The way to the stages beside this one, for states of that size."""
        return NeighbourLink(self.place, hidden_size, dtype, self._device)

    def close(self) -> None:
        """Leaves all groups."""
        dist.destroy_process_group()


def _wait_for_all(store: FileStore, place: RankPlace, timeout_s: float) -> None:
    """Raises: `RuntimeError` that names the ranks that have not come."""
    keys = [f"rank {rank}" for rank in range(place.shape.num_ranks)]
    store.set(keys[place.rank], "here")
    try:
        store.wait(keys)
    except RuntimeError as error:
        absent = ", ".join(key for key in keys if not store.check([key]))
        message = f"The ranks of the model have not met within {timeout_s:g} s: no {absent}."
        raise RuntimeError(message) from error


class StageGroup:
    """The ranks of one stage."""

    def __init__(self, group: dist.ProcessGroup, place: RankPlace, first: int) -> None:
        """`first` is the number among all ranks of the stage's first."""
        self._group = group
        self._first = first
        self.rank = place.tensor_rank
        self.size = place.shape.tensor

    def add_up(self, part_TD: Tensor) -> Tensor:
        """The sum of all ranks' parts, as `TensorGroup` has it."""
        if self.size > 1:
            part_TD = part_TD.contiguous()
            dist.all_reduce(part_TD, group=self._group)
        return part_TD

    def join_columns(self, part_RV: Tensor) -> Tensor:
        """All ranks' columns on the first, as `TensorGroup` has it."""
        if self.size == 1:
            return part_RV
        parts = [torch.empty_like(part_RV) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(part_RV.contiguous(), parts, dst=self._first, group=self._group)
        return part_RV if parts is None else torch.cat(parts, 1)


class NeighbourLink:
    """The ranks of the same number in the stages before and behind."""

    def __init__(
        self, place: RankPlace, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Nothing is under way."""
        self.place = place
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._sending: tuple[dist.Work, Tensor] | None = None

    def receive(self, num_tokens: int) -> Tensor | None:
        """The states of a step, as `StageLink` has it."""
        if self.place.is_first_stage:
            return None
        shape = (num_tokens, self._hidden_size)
        states_TD = torch.empty(shape, dtype=self._dtype, device=self._device)
        dist.recv(states_TD, src=self.place.rank - self.place.shape.tensor)
        return states_TD

    def send(self, states_TD: Tensor) -> None:
        """Hands states on, as `StageLink` has it."""
        if self._sending is not None:
            self._sending[0].wait()
        states_TD = states_TD.contiguous()
        work = dist.isend(states_TD, dst=self.place.rank + self.place.shape.tensor)
        assert work is not None, "this rank is in its own group"
        self._sending = (work, states_TD)  # which has to stay until it was taken
