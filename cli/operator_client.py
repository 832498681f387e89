"""The operators' port as commands use it.

Owns the HTTP of one client and where its credential comes from; must not know the terminal. Read
next: `gateway.api.placement_pages`.
"""

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.dev.home import DevHome
from cli.terminal import CommandFailed, fail_to_connect
from contracts.fleet_view import (
    DRAINS_PATH,
    KEYS_PATH,
    NODES_PATH,
    PLACEMENT_PATH,
    RULES_PATH,
    FleetView,
    NodeDrain,
    NodeState,
    PlacementRule,
)

TOKEN_VARIABLE: Final = "HEARTH_OPERATOR_TOKEN"
_TIMEOUT_S: Final = 10.0


class OperatorClient:
    """Talks to one gateway's operators' port. Used as a context manager."""

    def __init__(self, admin_url: str, operator_token: str) -> None:
        """`admin_url` is an origin."""
        import httpx  # here, for it takes a third of the time that `hearth --help` may take

        self._origin = admin_url.rstrip("/")
        self._connection_errors = (httpx.HTTPError, httpx.InvalidURL)
        self._http = httpx.Client(
            base_url=self._origin,
            headers={"Authorization": f"Bearer {operator_token}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )

    def __enter__(self) -> "OperatorClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def read_fleet(self) -> FleetView:
        """Where weights are. Raises: `CommandFailed`."""
        return msgspec.convert(self._ask("GET", PLACEMENT_PATH), FleetView)

    def set_rule(self, **fields: object) -> PlacementRule:
        """The rule that holds from now on. Raises: `CommandFailed`."""
        return msgspec.convert(self._ask("PUT", RULES_PATH, fields), PlacementRule)

    def end_rule(self, model: str) -> None:
        """No rule holds any more. Raises: `CommandFailed`."""
        self._ask("DELETE", RULES_PATH, params={"model": model})

    def list_nodes(self) -> list[NodeState]:
        """Every node that the gateway is configured for. Raises: `CommandFailed`."""
        return msgspec.convert(self._ask("GET", NODES_PATH), list[NodeState])

    def drain_node(self, node_id: str, move_after_s: int | None) -> NodeDrain:
        """The node gets nothing new from now on. Raises: `CommandFailed`."""
        body = {"node_id": node_id, "move_after_s": move_after_s}
        return msgspec.convert(self._ask("PUT", DRAINS_PATH, body), NodeDrain)

    def undrain_node(self, node_id: str) -> None:
        """The node gets requests again. Raises: `CommandFailed`."""
        self._ask("DELETE", DRAINS_PATH, params={"node_id": node_id})

    def rotate_node_key(self, node_id: str) -> str:
        """The name of the key that the gateway and the node share now. Raises: `CommandFailed`."""
        answer: dict[str, Any] = self._ask("POST", KEYS_PATH, {"node_id": node_id})
        return str(answer["key"])

    def _ask(
        self, method: str, path: str, body: object = None, params: dict[str, str] | None = None
    ) -> Any:
        """The result in the answer's envelope. Raises: `CommandFailed` with the server's words."""
        content = None if body is None else msgspec.json.encode(body)
        try:
            response = self._http.request(method, path, content=content, params=params)
        except self._connection_errors as error:
            raise fail_to_connect(self._origin, error) from error
        try:
            answer: dict[str, Any] = msgspec.json.decode(response.content)
            if response.is_success:
                return answer["result"]
            sentence = str(answer["errors"][0]["message"])
        except (msgspec.MsgspecError, KeyError, TypeError, IndexError):
            sentence = response.text[:200]
        raise CommandFailed(f"{sentence} (HTTP {response.status_code})")


def open_operator_client(admin_url: str | None, directory: Path) -> OperatorClient:
    """A client from the option, completed from the environment and from `dev.json`.

    Raises: `CommandFailed` that names what is missing.
    """
    access = None if admin_url else DevHome(directory).read_access()
    if access is None and admin_url is None:
        raise CommandFailed(
            f"There is no {directory}/dev.json. Start `hearth dev` here first, or give --admin-url."
        )
    token = os.environ.get(TOKEN_VARIABLE) or (access.admin_token if access else None)
    if token is None:
        raise CommandFailed(f"With --admin-url, put the operator's token into {TOKEN_VARIABLE}.")
    return OperatorClient(admin_url or (access.admin_url if access else ""), token)
