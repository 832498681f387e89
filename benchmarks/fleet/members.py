"""Nodes that no gateway's settings name: enrolled by the operators' commands, found in Redis.

Owns the two commands, `hearth node enrol` at each gateway and `hearth node join` at the node, and
what of both goes into settings. Read next: `benchmarks.fleet.fleet`.
"""

import asyncio
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.fleet.processes import FleetError

_TOKEN = re.compile(r"hearth_enrol_\S+")
GONE_AFTER_S = 4.0
"""Less than a black hole lasts here, so that who is in one is forgotten and comes back."""


async def enrol_members(
    folder: Path, regions: Mapping[str, str], gateways: Collection[str]
) -> None:
    """Each node of `regions` has met each gateway; their settings are written already."""
    for gateway in gateways:
        config = folder / f"{gateway}.toml"
        for node, region in regions.items():
            place = ("--region", region, "--allow-plaintext")
            printed = await _run("enrol", node, *place, "--config", str(config))
            token = _TOKEN.search(printed)
            if token is None:
                raise FleetError(f"{gateway} has no token for {node}: {printed}")
            key_file = name_key(folder, gateway, node)
            await _run("join", token[0], "--key-file", str(key_file))


def name_key(folder: Path, gateway: str, node: str) -> Path:
    """Where a node has its key of a gateway."""
    return folder / f"{gateway}--{node}.key"


def describe_to_gateway(folder: Path, gateway: str, store_url: str) -> dict[str, Any]:
    """The gateway's section."""
    members = folder / f"{gateway}.members"
    return {"url": store_url, "folder": str(members), "gone_after_s": GONE_AFTER_S}


def describe_to_node(address: str, port: int, store_url: str) -> dict[str, Any]:
    """The node's section."""
    return {"url": store_url, "advertised_url": f"ws://{address}:{port}"}


async def _run(*words: str) -> str:
    """What a command of `hearth node` prints. Raises: `FleetError` where it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", "node", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    printed = output.decode(errors="replace")
    if process.returncode:
        raise FleetError(f"hearth node {words[0]} failed: {printed}")
    return printed
