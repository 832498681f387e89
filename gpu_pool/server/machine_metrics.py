"""Metrics of the machine below a node: its GPUs, and what its operator pays for it.

Owns names; a GPU is named by the driver's own id, so that two nodes of one machine are not counted
twice. What tokens cost is for the dashboard to divide.
Read next: `node_metrics` (the caller), `nvml`.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gpu_pool.server.nvml import GpuFigures, GpuSource
from gpu_pool.settings import RunningCosts

_Reading = Callable[[GpuFigures], float | None]
_LABELS: Final = ("gpu", "uuid")
_PATIENCE_S: Final = 2.0
"""Less than a collector waits for the whole answer."""
_GAUGES: Final[tuple[tuple[str, str, _Reading], ...]] = (
    ("hearth_node_gpu_busy_ratio", "Share of the time in which a GPU computed.", lambda g: g.busy),
    (
        "hearth_node_gpu_memory_used_bytes",
        "Memory of a GPU in use, whoever uses it.",
        lambda g: g.memory_used_bytes,
    ),
    (
        "hearth_node_gpu_memory_total_bytes",
        "All memory of a GPU.",
        lambda g: g.memory_total_bytes,
    ),
    ("hearth_node_gpu_power_watts", "What a GPU draws.", lambda g: g.power_watts),
)


class MachineMetrics:
    """The families, as they were when somebody last looked."""

    def __init__(self, gpus: GpuSource, costs: RunningCosts | None) -> None:
        """Nobody has looked yet."""
        self._gpus = gpus
        self._costs = costs
        self._figures: Sequence[GpuFigures] = ()
        self._reading: asyncio.Future[Sequence[GpuFigures]] | None = None

    async def look(self) -> None:
        """Reads the GPUs; a driver that does not answer tells nothing, and is not asked again."""
        reading = self._reading or self._begin_reading()
        self._reading = reading
        done, _ = await asyncio.wait({reading}, timeout=_PATIENCE_S)
        if done and self._reading is reading:
            self._reading = None
        self._figures = reading.result() if done else ()

    def _begin_reading(self) -> asyncio.Future[Sequence[GpuFigures]]:
        """Reads in a thread of its own, which keeps no process from ending."""
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[Sequence[GpuFigures]] = loop.create_future()

        def read() -> None:
            figures: Sequence[GpuFigures] = ()
            try:
                figures = self._gpus.read()
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(reading.set_result, figures)

        threading.Thread(target=read, name="gpus", daemon=True).start()
        return reading

    def collect(self) -> Iterator[Metric]:
        """What there is: no family without GPUs, no price that nobody has set."""
        for name, text, read in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for figures in self._figures:
                value = read(figures)
                if value is not None:
                    family.add_metric((str(figures.index), figures.uuid), value)
            if family.samples:
                yield family
        costs = self._costs
        if costs is not None:
            yield GaugeMetricFamily(
                "hearth_node_price_per_hour", "What the node costs, in use or not.", costs.per_hour
            )
            yield GaugeMetricFamily(
                "hearth_node_price_per_kilowatt_hour",
                "What the energy of its GPUs costs beside that.",
                costs.per_kilowatt_hour,
            )
