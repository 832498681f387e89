"""Asks the running parts whether they are ready.

Owns the questions over HTTP; must not know processes. Read next: `cli.dev.command`.
"""

import time
from collections.abc import Callable
from threading import Event
from typing import Any, Final

import httpx

from cli.terminal import CommandFailed
from contracts.fleet_view import NODES_PATH, PLACEMENT_PATH
from contracts.placement import Tier

_POLL_S: Final = 0.1
_REQUEST_TIMEOUT_S: Final = 2.0


class ReadinessProbe:
    """Looks at one gateway, and at its node through it, from outside."""

    def __init__(self, base_url: str, admin_url: str, admin_token: str) -> None:
        """The URLs are origins."""
        self._base_url = base_url
        self._admin_url = admin_url
        self._headers = {"Authorization": f"Bearer {admin_token}"}

    def is_gateway_ready(self) -> bool:
        """True once the gateway answers on its own port."""
        try:
            response = httpx.get(f"{self._base_url}/health/live", timeout=_REQUEST_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return response.status_code == 200

    def list_ready_models(self) -> tuple[str, ...]:
        """Names of the models that a connected node serves now, in the node's order."""
        nodes = self._list_nodes()
        return tuple(load["name"] for node in nodes for load in node["loads"] if load["is_ready"])

    def list_models_elsewhere(self) -> tuple[str, ...]:
        """Names of the models that come to a connected node's device when they are asked for."""
        view: dict[str, Any] = self._read(PLACEMENT_PATH) or {"nodes": []}
        nodes: list[dict[str, Any]] = view["nodes"]
        return tuple(
            model["name"]
            for node in nodes
            for model in node["placements"]
            if model["tier"] != Tier.GPU and not model["is_moving"]
        )

    def list_failed_models(self) -> dict[str, str]:
        """The reason of every model that has failed for good at a connected node, by name."""
        nodes = self._list_nodes()
        return {model["name"]: model["reason"] for node in nodes for model in node["failed"]}

    def has_node(self) -> bool:
        """True once a node is connected."""
        return any(node["is_connected"] for node in self._list_nodes())

    def _list_nodes(self) -> list[dict[str, Any]]:
        """The operators' view of the fleet; empty while there is no answer."""
        return self._read(NODES_PATH) or []

    def _read(self, path: str) -> Any:
        """What an operators' route tells; None while there is no answer."""
        try:
            response = httpx.get(
                self._admin_url + path, headers=self._headers, timeout=_REQUEST_TIMEOUT_S
            )
        except httpx.TransportError:
            return None
        return response.json()["result"] if response.status_code == 200 else None


def wait_for(
    condition: Callable[[], bool],
    what: str,
    timeout_s: float,
    stop: Event,
    check: Callable[[], None],
) -> bool:
    """True once `condition` holds, False when `stop` was set first. `check` runs in between.

    Raises: `CommandFailed` after `timeout_s`, and whatever `check` raises.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise CommandFailed(f"{what} is not ready after {timeout_s:g} s.")
        if stop.wait(_POLL_S):
            return False
    return True
