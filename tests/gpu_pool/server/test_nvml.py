"""GPUs as NVIDIA's library tells of them: a small library that is compiled here stands for it.

It has the functions and structures of nvml.h, so that a wrong signature or order of fields shows.
"""

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from contracts.sections import MetricsSettings
from gpu_pool.compute_choice import DeviceChoice
from gpu_pool.model_settings import EngineSettings, ServedModelSettings
from gpu_pool.server.machine_metrics import MachineMetrics
from gpu_pool.server.node_metrics import MetricsPort, NodeMetrics
from gpu_pool.server.nvml import DriverGpus, GpuFigures, NoGpus, open_gpus
from gpu_pool.server.status_creation import create_machine_metrics
from gpu_pool.settings import PoolSettings, RunningCosts
from tests.fixtures.double_node import run_double_node

COMPILER = shutil.which("cc") or shutil.which("gcc")
SOURCE = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { int number; } device_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static device_t devices[] = {{0}, {1}, {2}};
static int is_ready;
int nvmlInit_v2(void) {
    const char *gate = getenv("HEARTH_TEST_NVML_GATE");
    while (gate && access(gate, F_OK) != 0) usleep(1000);  /* a driver that hangs */
    is_ready = 1;
    return INIT;
}
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return is_ready ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t **device) {
    *device = &devices[index];
    return index == 2 ? 15 : 0;  /* NVML_ERROR_GPU_IS_LOST */
}
int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned int length) {
    if (length < 96) return 7;
    strcpy(uuid, device->number ? "GPU-b" : "GPU-a");
    return 0;
}
int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *used) {
    used->gpu = 42; used->memory = 7;
    return device->number ? 3 : 0;  /* NVML_ERROR_NOT_SUPPORTED */
}
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
    memory->total = 80ULL << 30; memory->free = 20ULL << 30; memory->used = 60ULL << 30;
    return 0;
}
#ifndef OLD
int nvmlDeviceGetPowerUsage(device_t *device, unsigned int *milliwatts) {
    *milliwatts = 350500;
    return device->number ? 3 : 0;
}
#endif
"""


def build(folder: Path, init: int = 0, *options: str) -> str:
    """The path of a library whose `nvmlInit_v2` answers so."""
    if COMPILER is None:
        pytest.skip("there is no C compiler to make the library that stands for NVIDIA's")
    source, library = folder / "nvml.c", folder / f"libnvml-{init}{''.join(options)}.so"
    source.write_text(SOURCE)
    compile_shared = [COMPILER, "-shared", "-fPIC", f"-DINIT={init}", *options]
    subprocess.run([*compile_shared, "-o", str(library), str(source)], check=True)
    return str(library)


def test_a_gpu_tells_what_it_can_and_a_lost_one_nothing(tmp_path: Path) -> None:
    first, second = open_gpus(build(tmp_path)).read()
    assert first == GpuFigures(0, "GPU-a", 0.42, 60 << 30, 80 << 30, 350.5)
    assert second == GpuFigures(1, "GPU-b", None, 60 << 30, 80 << 30, None)


def test_without_a_driver_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    (tmp_path / "other.c").write_text("int another(void) { return 0; }")
    assert isinstance(open_gpus(str(tmp_path / "none.so")), NoGpus)
    assert isinstance(open_gpus(build(tmp_path, init=9)), NoGpus)  # NVML_ERROR_DRIVER_NOT_LOADED
    assert isinstance(open_gpus(build(tmp_path, 0, "-DOLD")), NoGpus)  # without watts
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-o", str(other), str(tmp_path / "other.c")], check=True)
    assert isinstance(open_gpus(str(other)), NoGpus)
    assert NoGpus().read() == ()
    assert list(MachineMetrics(NoGpus(), None).collect()) == []


class HangingGpus:
    """A driver that answers when it is let."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.num_asked = 0

    def read(self) -> Sequence[GpuFigures]:
        self.num_asked += 1
        self.may_answer.wait()
        return (GpuFigures(0, "GPU-a", 0.5, None, None, None),)


async def test_a_driver_that_hangs_holds_up_no_scrape_and_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_pool.server.machine_metrics._PATIENCE_S", 0.05)
    gpus = HangingGpus()
    machine = MachineMetrics(gpus, RunningCosts(per_hour=1.0))
    try:
        for _ in range(3):
            await asyncio.wait_for(asyncio.gather(machine.look(), machine.look()), 30)
            assert {f.name for f in machine.collect()} == {
                "hearth_node_price_per_hour",
                "hearth_node_price_per_kilowatt_hour",
            }
        assert gpus.num_asked == 1
    finally:
        gpus.may_answer.set()
    monkeypatch.setattr("gpu_pool.server.machine_metrics._PATIENCE_S", 30.0)
    await asyncio.gather(machine.look(), machine.look())
    assert "hearth_node_gpu_busy_ratio" in {f.name for f in machine.collect()}  # it is back
    before = gpus.num_asked
    await machine.look()
    assert gpus.num_asked == before + 1  # and asked anew


async def test_a_driver_that_hangs_when_it_is_loaded_holds_up_neither_start_nor_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("HEARTH_TEST_NVML_GATE", str(gate))
    monkeypatch.setattr("gpu_pool.server.machine_metrics._PATIENCE_S", 0.05)
    library = build(tmp_path)
    opening = threading.Thread(target=open_gpus, args=(library,), daemon=True)
    opening.start()
    opening.join(0.2)
    assert opening.is_alive()  # the control: whoever loads it waits
    machine = MachineMetrics(DriverGpus(library), None)
    try:
        for _ in range(2):
            await asyncio.wait_for(machine.look(), 30)
            assert list(machine.collect()) == []
    finally:
        gate.touch()
    opening.join(30)
    monkeypatch.setattr("gpu_pool.server.machine_metrics._PATIENCE_S", 30.0)
    await machine.look()
    assert "hearth_node_gpu_power_watts" in {f.name for f in machine.collect()}  # it is back


async def test_a_scrape_reads_the_gpus_and_the_prices(tmp_path: Path, checkpoint: Path) -> None:
    async with run_double_node(tmp_path, checkpoint, is_ready=False) as node:
        without = "".join(f.name for f in node.server.parts.machine.collect())
        assert without == ""  # the control
        costs = RunningCosts(per_hour=2.5, per_kilowatt_hour=0.25)
        machine = MachineMetrics(open_gpus(build(tmp_path)), costs)
        status = node.server.parts.status
        metrics = NodeMetrics(status.create_report, status.meter, status.list_kv_tiers, machine)
        port = MetricsPort(MetricsSettings(port=0), metrics)
        await port.start(lambda: None)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port.number}/metrics") as response,
            ):
                text = await response.text()
        finally:
            await port.stop()
    first = '{gpu="0",uuid="GPU-a"}'
    assert f"hearth_node_gpu_busy_ratio{first} 0.42" in text
    assert f"hearth_node_gpu_power_watts{first} 350.5" in text
    assert f"hearth_node_gpu_memory_used_bytes{first} 6.442450944e+10" in text
    assert text.count("hearth_node_gpu_power_watts{") == 1  # the second one does not tell
    assert text.count("hearth_node_gpu_memory_total_bytes{") == 2
    assert "hearth_node_price_per_hour 2.5" in text
    assert "hearth_node_price_per_kilowatt_hour 0.25" in text


@pytest.mark.parametrize("device", DeviceChoice)
def test_a_node_that_computes_on_no_gpu_asks_for_none(
    device: DeviceChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        "gpu_pool.server.status_creation.DriverGpus", lambda: asked.append(True) or NoGpus()
    )
    model = ServedModelSettings(name="@hearth/a", path=Path())
    create_machine_metrics(PoolSettings(models=(model,), engine=EngineSettings(device=device)))
    assert bool(asked) is (device is DeviceChoice.CUDA)
