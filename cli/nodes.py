"""`hearth nodes`, `hearth node drain | undrain`: a running fleet's nodes, and which of them rest.

Owns the words and the wait; what a drain does is the gateway's affair. Read next:
`cli.operator_client`, `gateway.routing.drain_desk`.
"""

import time
from typing import Annotated, Final

import msgspec
import typer

from cli.operator_client import OperatorClient, open_operator_client
from cli.operator_options import DEFAULT_DIRECTORY, AdminUrlOption, DirectoryOption, JsonOption
from cli.terminal import NONE, CommandFailed, print_json, print_table
from contracts.fleet_view import NodeDrain, NodeState

HEADINGS: Final = ("NODE", "REGION", "ROLE", "STATE", "MODELS", "REQUESTS", "REPORT")
SEEN_BY_ALL_S: Final = 2.0
"""By then every gateway has read of a drain, and sends nothing new."""
SILENT_S: Final = 5.0
"""A member writes about once a second."""
_LOOK_S: Final = 0.25

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="As settings name it.")]


def add_node_commands(app: typer.Typer) -> None:
    """Registers the commands that ask a running fleet."""
    app.command("drain")(drain)
    app.command("undrain")(undrain)


def nodes(
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Show every node of a running fleet: where it is, what it is for and what it has to do.

    Next to a running `hearth dev` it needs no options. Elsewhere: `--admin-url`, and the operator's
    token in the variable `HEARTH_OPERATOR_TOKEN`.
    """
    with open_operator_client(admin_url, directory) as client:
        found = client.list_nodes()
    if as_json:
        print_json([msgspec.to_builtins(node) for node in found])
    else:
        print_table(HEADINGS, [format_row(node, time.time()) for node in found])


def drain(
    node: NodeArgument,
    move_after_s: Annotated[
        int | None,
        typer.Option(
            "--move-after",
            min=0,
            help="Seconds after which streams that still run go on at other nodes; left out, they "
            "go on here to their end.",
        ),
    ] = None,
    is_awaited: Annotated[
        bool, typer.Option("--wait", help="Return when the node has nothing to do any more.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="How long `--wait` may take, in seconds.")
    ] = 3600.0,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Send nothing new to a node, until `undrain`; every gateway follows within two seconds.

    It is kept in the database: neither a gateway's restart nor the node's own ends it.

    Example: `hearth node drain gpu-7 --move-after 60 --wait && ssh gpu-7 reboot`
    """
    with open_operator_client(admin_url, directory) as client:
        begun = client.drain_node(node, move_after_s)
        print(f"{node} gets nothing new.")
        if is_awaited:
            _wait_until_empty(client, begun, timeout_s)
            print(f"{node} has nothing to do any more.")


def undrain(
    node: NodeArgument,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Send requests to a node again."""
    with open_operator_client(admin_url, directory) as client:
        client.undrain_node(node)
    print(f"{node} gets requests again.")


def format_row(node: NodeState, unix_s: float) -> tuple[str, ...]:
    """The cells of one line. What one had to do that is away was so when it went."""
    num_ready = sum(load.is_ready for load in node.loads)
    num_models = len(node.models) + len(node.failed)
    age_s = node.report_age_s
    return (
        node.node_id,
        node.region or NONE,
        describe_role(node) if node.region else NONE,
        describe_state(node, unix_s),
        f"{num_ready} of {num_models} ready" if node.is_connected else NONE,
        str(node.num_requests) if node.is_connected else NONE,
        NONE if age_s is None else f"{age_s:.1f} s ago",
    )


def describe_role(node: NodeState) -> str:
    """What a node is there for, and what it had better be there for."""
    if node.suggested_role is None:
        return node.role
    return f"{node.role}, better {node.suggested_role}"


def describe_state(node: NodeState, unix_s: float) -> str:
    """What a node is up to, in a few words."""
    words = [_describe_link(node)]
    if node.heartbeat_age_s is not None and node.heartbeat_age_s > SILENT_S:
        words.append(f"silent in the store for {node.heartbeat_age_s:.0f} s")
    if node.is_draining and node.is_connected:
        words.append("stopping")
    if node.drain is not None:
        left_s = _measure_left_s(node.drain, unix_s)
        words.append("drained" if left_s is None else f"drained, streams move in {left_s:.0f} s")
    return ", ".join(words)


def _describe_link(node: NodeState) -> str:
    """Whether a node is there, and what is wrong with what it says."""
    if node.is_connected:
        return "connected" if node.refusal is None else f"connected, but {node.refusal}"
    if node.refusal is not None:
        return f"refused: {node.refusal}"
    return "away" if node.region else "never seen"


def _measure_left_s(drain: NodeDrain, unix_s: float) -> float | None:
    """Until streams are moved; None when that is not to come."""
    if drain.move_after_s is None or drain.is_over(unix_s):
        return None
    return drain.begun_unix_s + drain.move_after_s - unix_s


def _wait_until_empty(client: OperatorClient, drain: NodeDrain, timeout_s: float) -> None:
    """Returns when the node has reported that it is idle, and no gateway can send it anything.

    One that is away has nothing to do either. Raises: `CommandFailed` when that takes too long.
    """
    began_s = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        waited_s = time.monotonic() - began_s
        found = [node for node in client.list_nodes() if node.node_id == drain.node_id]
        if not found or found[0].drain is None:
            raise CommandFailed(f"{drain.node_id} is not drained any more.")
        (node,) = found
        is_empty = not node.is_connected or not node.num_requests
        if is_empty and waited_s > SEEN_BY_ALL_S:
            return
        if waited_s > timeout_s:
            raise CommandFailed(f"{drain.node_id} still has {node.num_requests} requests.")
