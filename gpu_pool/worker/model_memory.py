"""All the memory of a loaded model that can leave its device: weights and KV memory.

Must not know files or plans. Read next: `gpu_pool.weights.device_memory`.
"""

import os
from collections.abc import Sequence

from torch import Tensor

from gpu_pool.weights.cpu_memory import DroppedMemory, KeptMemory
from gpu_pool.weights.device_memory import DeviceMemory
from gpu_pool.weights.tensor_search import find_tensors


class ModelMemory:
    """Weights, whose content is kept, and KV memory, whose content is not."""

    def __init__(self, weights: DeviceMemory, kv: Sequence[DeviceMemory] = ()) -> None:
        """All on the device."""
        self.weights_bytes = weights.num_bytes
        self.kv_bytes = sum(part.num_bytes for part in kv)
        self._weights = weights
        self._kv = tuple(kv)

    def leave(self) -> int:
        """Gives all back; returns the bytes. The KV memory goes first: it makes room at once."""
        return sum([part.leave() for part in (*self._kv, self._weights)])

    def come_back(self) -> int:
        """Takes all again, weights as they were and KV memory as zeros; returns the bytes."""
        return sum([part.come_back() for part in (self._weights, *self._kv)])

    def close(self) -> None:
        """Gives back what is held beside the device's memory."""
        for part in (self._weights, *self._kv):
            part.close()


def find_memory(model: object, kv: Sequence[Tensor] = ()) -> ModelMemory:
    """The memory of a model that was loaded on a CPU, and its KV memory."""
    weights = KeptMemory(find_tensors(model), os.cpu_count() or 1)
    return ModelMemory(weights, [DroppedMemory(kv)] if kv else ())
