"""A device whose addresses are given out apart from the memory behind them.

Owns the words for it and NVIDIA's way: the driver's virtual memory, through cuda-bindings. Must not
know what lies there. Source: CUDA driver API, virtual memory management.
Read next: `arena`, the caller.
"""

import importlib
from typing import Any, Protocol

import torch
from torch import Tensor

from gpu_pool.weights.pages import Span


class VirtualMemory(Protocol):
    """One device. Addresses and lengths of mappings are multiples of `granularity`."""

    @property
    def granularity(self) -> int:
        """Bytes that are mapped at least."""
        ...

    def reserve(self, num_bytes: int) -> int:
        """The first of so many addresses; nothing is behind them."""
        ...

    def free(self, address: int, num_bytes: int) -> None:
        """Gives addresses back, behind which nothing is."""
        ...

    def map(self, address: int, num_bytes: int) -> int:
        """Puts memory of the device behind addresses; returns its handle. It holds anything."""
        ...

    def unmap(self, address: int, num_bytes: int, handle: int) -> None:
        """Gives the memory back to the device. Nobody may be using it."""
        ...

    def copy_in(self, address: int, source: Span) -> None:
        """Starts a copy from the host, which is over after `wait`, or where `hold` says so. Copies
        are carried out in order, beside what is computed.
        """
        ...

    def mark(self) -> object:
        """The moment at which all copies from the host are over that were started so far."""
        ...

    def hold(self, moment: object) -> None:
        """What is computed from now on begins after `moment`; the caller does not wait."""
        ...

    def copy_out(self, address: int, target: Span) -> None:
        """Starts a copy to the host, which is over after `wait`."""
        ...

    def zero(self, address: int, num_bytes: int) -> None:
        """Starts zeroing, which is over after `wait`."""
        ...

    def wait(self) -> None:
        """Returns when all that was started on the device is over."""
        ...

    def pin(self, span: Span) -> None:
        """Locks the host's memory, so that the device copies at full speed."""
        ...

    def unpin(self, span: Span) -> None:
        """Unlocks it."""
        ...

    def view(self, address: int, num_bytes: int) -> Tensor:
        """Memory behind addresses as bytes, which stay the tensor's whatever is behind them."""
        ...


def has_cuda_bindings() -> bool:
    """True where the driver's own calls can be made."""
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return False
    return True


class CudaVirtualMemory:
    """The GPU that torch uses. Copies from the host have a stream of their own, so that kernels
    run meanwhile; all else goes through the default stream.
    """

    def __init__(self, device: torch.device) -> None:
        """Makes the context of torch's current GPU the current one. Raises: `OSError`."""
        torch.empty(1, device=device)
        self._driver: Any = importlib.import_module("cuda.bindings.driver")
        index = torch.cuda.current_device()
        driver = self._driver
        self._property = driver.CUmemAllocationProp()
        self._property.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._property.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._property.location.id = index
        self._access = driver.CUmemAccessDesc()
        self._access.location = self._property.location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._device = torch.device("cuda", index)
        self._copies = torch.cuda.Stream(self._device)
        flags = driver.CUmemAllocationGranularity_flags
        kind = flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self._granularity = int(self._call("cuMemGetAllocationGranularity", self._property, kind))

    @property
    def granularity(self) -> int:
        """Bytes that are mapped at least."""
        return self._granularity

    def reserve(self, num_bytes: int) -> int:
        """Addresses of this process."""
        return int(self._call("cuMemAddressReserve", num_bytes, self._granularity, 0, 0))

    def free(self, address: int, num_bytes: int) -> None:
        """Gives them back."""
        self._call("cuMemAddressFree", address, num_bytes)

    def map(self, address: int, num_bytes: int) -> int:
        """Physical memory behind addresses. Raises: `OSError` when the device has none left."""
        handle = self._call("cuMemCreate", num_bytes, self._property, 0)
        try:
            self._call("cuMemMap", address, num_bytes, 0, handle, 0)
            self._call("cuMemSetAccess", address, num_bytes, [self._access], 1)
        except OSError:
            self._call("cuMemRelease", handle)
            raise
        return int(handle)

    def unmap(self, address: int, num_bytes: int, handle: int) -> None:
        """Memory goes back to the driver with its last mapping."""
        self._call("cuMemUnmap", address, num_bytes)
        self._call("cuMemRelease", handle)

    def copy_in(self, address: int, source: Span) -> None:
        """Asynchronous where `source` is pinned."""
        stream = self._copies.cuda_stream
        self._call("cuMemcpyHtoDAsync", address, source.address, source.num_bytes, stream)

    def mark(self) -> object:
        """An event on the stream of copies."""
        return self._copies.record_event()

    def hold(self, moment: object) -> None:
        """Lets the stream wait that torch launches kernels on."""
        assert isinstance(moment, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(moment)

    def copy_out(self, address: int, target: Span) -> None:
        """Asynchronous where `target` is pinned."""
        self._call("cuMemcpyDtoHAsync", target.address, address, target.num_bytes, 0)

    def zero(self, address: int, num_bytes: int) -> None:
        """Asynchronous."""
        self._call("cuMemsetD8Async", address, 0, num_bytes, 0)

    def wait(self) -> None:
        """All streams of the device, torch's own included."""
        torch.cuda.synchronize(self._device)

    def pin(self, span: Span) -> None:
        """Page-locks it."""
        self._call("cuMemHostRegister", span.address, span.num_bytes, 0)

    def unpin(self, span: Span) -> None:
        """The contrary."""
        self._call("cuMemHostUnregister", span.address)

    def view(self, address: int, num_bytes: int) -> Tensor:
        """A tensor of bytes over mapped addresses."""
        return torch.as_tensor(_DeviceBytes(address, num_bytes), device=self._device)

    def _call(self, name: str, *arguments: Any) -> Any:
        """What the driver returns. Raises: `OSError` with the driver's name for what went wrong."""
        error, *results = getattr(self._driver, name)(*arguments)
        if int(error):
            raise OSError(f"{name}: {error.name}")
        return results[0] if results else None


class _DeviceBytes:
    """A range of device memory, in the form that torch takes over without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        """Owns nothing."""
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
