"""Checkpoints of one shape and different weights, and a real node that holds few of them at once.

Owns files and the process; must not know traces or figures. Read next: `bench_node`.
"""

import asyncio
import json
import secrets
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from benchmarks.engine.random_llama import LlamaShapes, write_random_llama
from contracts.fleet import NodeReport
from contracts.ids import GatewayId, ModelName, NodeId
from contracts.placement import ModelPlacement
from gateway.routing.rings import SHORTEST_REPORT_MS
from gateway.settings import LimitSettings, NodeSettings
from gateway.sources import create_sources
from gateway.upstream.links import NodeLinks, create_node_links
from gpu_pool.model_store import BUNDLED_PATH

KV_BYTES: Final = 16 << 20
SIZES: Final = {
    "small": LlamaShapes(128, 256, 2, 4, 2, 32, 0),
    "200mb": LlamaShapes(1024, 4096, 3, 16, 16, 64, 0),
}
"""In 32-bit floats; the vocabulary is that of the bundled model."""
_TEXT_FILES: Final = ("tokenizer.json", "tokenizer_config.json")
_GATEWAY: Final = GatewayId("gateway-1")
_NODE: Final = NodeId("crowded")


def write_models(folder: Path, size: str, count: int) -> dict[ModelName, Path]:
    """So many models with weights of their own; those that are there already are kept."""
    vocab_size = json.loads((BUNDLED_PATH / "config.json").read_text())["vocab_size"]
    shapes = replace(SIZES[size], vocab_size=vocab_size)
    models: dict[ModelName, Path] = {}
    for number in range(count):
        model = folder / f"{size}-{number:02}"
        if not (model / "model.safetensors").exists():
            model.mkdir(parents=True, exist_ok=True)
            for name in _TEXT_FILES:
                shutil.copyfile(BUNDLED_PATH / name, model / name)
            write_random_llama(model, shapes, torch.float32, seed=number)
        models[ModelName(f"@bench/model-{number:02}")] = model
    return models


class CrowdedNode:
    """The node as a gateway sees it."""

    def __init__(self, process: asyncio.subprocess.Process, links: NodeLinks, log: Path) -> None:
        """It is up."""
        self.process: Final = process
        self.links: Final = links
        self.node_id: Final = _NODE
        self.log: Final = log
        self.report: NodeReport | None = None

    def record_report(self, report: NodeReport) -> None:
        """The node has said how it is."""
        self.report = report

    def record_link_lost(self, node_id: NodeId) -> None:
        """It is gone; requests will say so."""

    def choose_report_ms(self, node_id: NodeId) -> int:
        """As often as any node."""
        return SHORTEST_REPORT_MS

    def find(self, name: ModelName) -> ModelPlacement:
        """Where a model is, as last heard."""
        assert self.report is not None
        return next(one for one in self.report.placements if one.name == name)


@asynccontextmanager
async def run_crowded_node(
    folder: Path, models: dict[ModelName, Path], num_on_device: float, num_in_host: float
) -> AsyncIterator[CrowdedNode]:
    """A node process whose memory holds so many of `models`."""
    weights = (next(iter(models.values())) / "model.safetensors").stat().st_size
    key_file = folder / "gateway.key"
    key_file.write_text(secrets.token_hex(32) + "\n")
    key_file.chmod(0o600)
    port = _find_port()
    settings = folder / "node.toml"
    settings.write_text(
        _create_settings(models, key_file, port)
        + "[placement]\n"
        + f"device_bytes = {int(num_on_device * (weights + KV_BYTES))}\n"
        + f"host_bytes = {int(num_in_host * weights)}\n"
    )
    log = folder / "node.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "cli", "node", "--config", str(settings)),
            stdout=output,
            stderr=output,
        )
    node = NodeSettings(node_id=_NODE, url=f"ws://127.0.0.1:{port}", key_file=key_file)
    crowded: CrowdedNode | None = None
    try:
        listener = _Listener()
        links = create_node_links(
            [node], _GATEWAY, LimitSettings(), 30.0, listener, create_sources()
        )
        crowded = listener.node = CrowdedNode(process, links, log)
        await links.start()
        try:
            await _wait_filled(crowded, int(num_on_device))
            yield crowded
        finally:
            await links.close()
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


class _Listener:
    """Passes on to the node, which is made after it."""

    node: CrowdedNode | None = None

    def record_report(self, report: NodeReport) -> None:
        if self.node is not None:
            self.node.record_report(report)

    def record_link_lost(self, node_id: NodeId) -> None: ...

    def choose_report_ms(self, node_id: NodeId) -> int:
        return SHORTEST_REPORT_MS


def _create_settings(models: dict[ModelName, Path], key_file: Path, port: int) -> str:
    """The file without its memory. One thread each: the node's cores are shared by all."""
    lines = [
        f'node_id = "{_NODE}"',
        'region = "local"',
        "max_cold_wait_s = 120.0",
        "[listen]",
        f"port = {port}",
        "[[gateways]]",
        f'gateway_id = "{_GATEWAY}"',
        f"key_file = {json.dumps(str(key_file))}",
        "[engine]",
        f"kv_bytes = {KV_BYTES}",
        "max_adapter_rank = 0",
    ]
    for name, path in models.items():
        lines += [
            "[[models]]",
            f'name = "{name}"',
            f"path = {json.dumps(str(path))}",
            'dtype = "float32"',
        ]
    return "\n".join(lines) + "\n"


def _find_port() -> int:
    """One that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _wait_filled(node: CrowdedNode, num_on_device: int) -> None:
    """Returns when as many models are ready as fit."""
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        loads: Sequence[object] = ()
        if node.report is not None:
            loads = [load for load in node.report.loads if load.is_ready]
        if len(loads) >= num_on_device:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"the node did not load its models; see {node.log}")
