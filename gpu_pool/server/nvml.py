"""The machine's NVIDIA GPUs as its driver sees them: how busy, how full, how many watts.

NVIDIA's own library by ctypes, which every driver brings: no package is needed. Where it is missing
there are no GPUs, which is no error. Must not know metrics. Source: NVML API reference, nvml.h.
Read next: `machine_metrics` (the caller).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

NVML: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
_UUID_BYTES: Final = 96
_FUNCTIONS: Final = (
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPowerUsage",
)


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU at one moment; None: it does not tell. Units: bytes, watts, a share of the time."""

    index: int
    uuid: str
    busy: float | None
    """Of the last moments, in which any kernel ran."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None


class GpuSource(Protocol):
    """Tells of GPUs."""

    def read(self) -> Sequence[GpuFigures]:
        """All of them at this moment; takes milliseconds, or for ever where a driver hangs."""
        ...


class NoGpus:
    """A machine without NVIDIA's driver."""

    def read(self) -> Sequence[GpuFigures]:
        """None."""
        return ()


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class NvmlGpus:
    """The GPUs of a driver."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """The library has been initialised."""
        self._library: Any = library

    def read(self) -> Sequence[GpuFigures]:
        """Those that the driver counts at this moment; one that is lost tells nothing."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return ()
        read = (self._read(index) for index in range(count.value))
        return tuple(figures for figures in read if figures is not None)

    def _read(self, index: int) -> GpuFigures | None:
        """One GPU; None where the driver has no name for it."""
        library, device = self._library, ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != _SUCCESS:
            return None
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        if library.nvmlDeviceGetUUID(device, uuid, _UUID_BYTES) != _SUCCESS:
            return None
        used, memory, milliwatts = _Utilization(), _Memory(), ctypes.c_uint()
        has_used = library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)) == _SUCCESS
        has_memory = library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == _SUCCESS
        has_power = library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) == _SUCCESS
        return GpuFigures(
            index,
            uuid.value.decode("ascii", "replace"),
            used.gpu / 100 if has_used else None,
            memory.used if has_memory else None,
            memory.total if has_memory else None,
            milliwatts.value / 1000 if has_power else None,
        )


class DriverGpus:
    """The GPUs of this machine's driver, which is loaded by whoever reads first: a driver that
    hangs holds that up, too, and a node's start must not wait for it.
    """

    def __init__(self, name: str = NVML) -> None:
        """Nothing is loaded yet."""
        self._name = name
        self._gpus: GpuSource | None = None

    def read(self) -> Sequence[GpuFigures]:
        """All of them at this moment; one caller at a time."""
        if self._gpus is None:
            self._gpus = open_gpus(self._name)
        return self._gpus.read()


def open_gpus(name: str = NVML) -> GpuSource:
    """The GPUs of the driver whose library has this name; none where there is no driver. Takes
    milliseconds, or for ever where a driver hangs.
    """
    try:
        library: Any = ctypes.CDLL(name)
        for function in _FUNCTIONS:
            library[function]
        is_ready = library.nvmlInit_v2() == _SUCCESS
    except (OSError, AttributeError):  # no such library, or an older one or another of that name
        return NoGpus()
    return NvmlGpus(library) if is_ready else NoGpus()
