"""What sleep and wake need of a model's memory, on whatever device it is.

Addresses stay while pages go: tensors, and on a GPU recorded graphs, are valid again after a wake.
Read next: `cpu_memory`, `arena` (the two there are), `gpu_pool.worker.worker` (the caller).
"""

from typing import Protocol

from gpu_pool.weights.landing import Landed, Landing


class DeviceMemory(Protocol):
    """A part of a model's memory. It is on the device at first."""

    @property
    def num_bytes(self) -> int:
        """What it takes on the device."""
        ...

    def leave(self) -> int:
        """Gives the device's memory back; returns the bytes. Only while it is on the device."""
        ...

    def come_back(self) -> int:
        """Takes the device's memory again, content in place; returns the bytes. After `leave`."""
        ...

    def close(self) -> None:
        """Gives back what is held beside the device's memory; nothing may follow."""
        ...


class LandingMemory(DeviceMemory, Protocol):
    """A part whose content may come back while what has come is computed with."""

    def begin_return(self) -> Landing:
        """Begins what `come_back` does. Before `leave` the landing is to be finished.

        Raises: `OSError` when the device has no memory left; nothing has changed then.
        """
        ...


class FixedMemory:
    """Memory that cannot leave: a model that sleeps keeps it."""

    def __init__(self, num_bytes: int) -> None:
        """Takes note of what there is."""
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        """What it takes on the device."""
        return self._num_bytes

    def leave(self) -> int:
        """Nothing is given back."""
        return 0

    def come_back(self) -> int:
        """Nothing was given back."""
        return 0

    def begin_return(self) -> Landing:
        """Nothing has to land."""
        return Landed(0)

    def close(self) -> None:
        """Nothing is held elsewhere."""
