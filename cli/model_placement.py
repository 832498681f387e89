"""`hearth models status|pin|unpin|warm|evict`: where the weights of a running fleet are.

Owns the words and the table; what a rule does is the gateway's and the planner's affair. Read next:
`cli.operator_client`, `contracts.fleet_view`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli.operator_client import open_operator_client
from cli.operator_options import DEFAULT_DIRECTORY, AdminUrlOption, DirectoryOption, JsonOption
from cli.terminal import (
    NONE,
    CommandFailed,
    format_bytes,
    is_interactive,
    print_json,
    print_table,
)
from contracts.fleet_view import FleetView, PlacementRule
from contracts.placement import ServiceClass, Tier

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS: Final = (
    *("MODEL", "NODE", "TIER", "WEIGHTS", "KV", "RULE", "LAST USE", "ASKED"),
    *("WAITING", "WAKES", "LAST WAKE", "NEXT WAKE"),
)
DEFAULT_WARM_S: Final = 600
DEFAULT_EVICT_S: Final = 60
_LIVE_S: Final = 1.0

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As clients name it.")]
ClassOption = Annotated[
    ServiceClass,
    typer.Option("--class", help="What else the model is promised, also when the pin ends."),
]


class PlacementRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one node, as `--json` prints it."""

    model: str
    node_id: str
    region: str
    tier: Tier
    is_moving: bool
    fetched_bytes: int
    """In `remote`: what is on the node's disk already."""
    loaded_ratio: float
    """While its engine starts: what of the files it has read."""
    weights_bytes: int
    kv_bytes: int
    rule: str
    last_used_unix_ms: int
    num_asked: int
    """Requests that this gateway has seen for the model, wherever they went."""
    num_waiting: int
    num_wakes: int
    last_wake_s: float
    next_wake_s: float


def add_placement_commands(app: typer.Typer) -> None:
    """Registers the commands that ask a running fleet."""
    app.command("status")(status)
    app.command("pin")(pin)
    app.command("unpin")(unpin)
    app.command("warm")(warm)
    app.command("evict")(evict)


def status(
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
    is_watched: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay and follow; Ctrl-C leaves.")
    ] = False,
) -> None:
    """Show where the weights of every model are, what they take and what waking them took.

    Next to a running `hearth dev` it needs no options. Elsewhere: `--admin-url`, and the operator's
    token in the variable `HEARTH_OPERATOR_TOKEN`.

    Examples: `hearth models status --watch`, `hearth models status --json | jq '.[].tier'`
    """
    with open_operator_client(admin_url, directory) as client:
        if as_json:
            print_json(list_rows(client.read_fleet(), time.time()))
        elif is_watched and is_interactive():
            _follow(client.read_fleet)
        else:
            view = client.read_fleet()
            rows = list_rows(view, time.time())
            print_table(HEADINGS, [format_row(row, view.unix_ms) for row in rows])
            print(format_memory(view))


def pin(
    name: NameArgument,
    service_class: ClassOption = ServiceClass.BEST_EFFORT,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Keep a model on a device in every region that serves it, until `unpin`.

    It takes the place of the rule that the model has, as `warm` and `evict` do.

    Example: `hearth models pin @cf/meta/llama-3.2-1b-instruct`
    """
    _set(name, admin_url, directory, tier=Tier.GPU, service_class=service_class)
    print(f"{name} is pinned to the device.")


def unpin(
    name: NameArgument,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """End whatever rule a model has: demand alone decides again."""
    with open_operator_client(admin_url, directory) as client:
        client.end_rule(name)
    print(f"Demand decides about {name}.")


def warm(
    name: NameArgument,
    for_s: Annotated[int, typer.Option("--for", help="How long, in seconds.")] = DEFAULT_WARM_S,
    tier: Annotated[Tier, typer.Option("--tier", help="gpu, or host.")] = Tier.GPU,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Bring a model nearer now and hold it there for a while, before traffic comes.

    A pin ends with it. `--tier host` also takes a model off the device until a request comes.

    Example: `hearth models warm @cf/meta/llama-3.2-1b-instruct --for 1800`
    """
    if tier not in (Tier.GPU, Tier.HOST):
        raise typer.BadParameter("A model is warm on `gpu` or in `host`.", param_hint="--tier")
    _set(name, admin_url, directory, tier=tier, for_s=for_s)
    print(f"{name} comes to {tier} and stays for {for_s} s.")


def evict(
    name: NameArgument,
    for_s: Annotated[
        int, typer.Option("--for", help="How long only a request may bring it back, in seconds.")
    ] = DEFAULT_EVICT_S,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Send a model's weights away now; a request brings them back, a forecast does not.

    A pin ends with it.

    Example: `hearth models evict @cf/meta/llama-3.2-1b-instruct --for 600`
    """
    _set(name, admin_url, directory, tier=Tier.DISK, for_s=for_s)
    print(f"{name} leaves for the disk.")


def list_rows(view: FleetView, unix_s: float) -> list[PlacementRow]:
    """Every model on every node, nearest first."""
    rules = {rule.model: rule for rule in view.rules}
    asked: dict[str, int] = {}
    for sample in view.demand:
        asked[sample.model] = asked.get(sample.model, 0) + sample.num_arrivals
    depths = list(Tier)
    rows = [
        PlacementRow(
            model=model.name,
            node_id=node.node_id,
            region=node.region or "",
            tier=model.tier,
            is_moving=model.is_moving,
            fetched_bytes=model.fetched_bytes,
            loaded_ratio=model.loaded_ratio,
            weights_bytes=model.weights_bytes,
            kv_bytes=model.kv_bytes,
            rule=_describe_rule(rules.get(model.name), unix_s),
            last_used_unix_ms=model.last_used_unix_ms,
            num_asked=asked.get(model.name, 0),
            num_waiting=model.num_waiting,
            num_wakes=model.num_wakes,
            last_wake_s=model.last_wake_s,
            next_wake_s=model.wake_s,
        )
        for node in view.nodes
        for model in node.placements
    ]
    return sorted(rows, key=lambda row: (row.node_id, depths.index(row.tier), row.model))


def format_row(row: PlacementRow, unix_ms: int) -> tuple[str, ...]:
    """The cells of one line."""
    return (
        row.model,
        row.node_id,
        f"{row.tier}{_describe_move(row)}",
        format_bytes(row.weights_bytes),
        format_bytes(row.kv_bytes),
        row.rule,
        _format_age(row.last_used_unix_ms, unix_ms),
        str(row.num_asked),
        str(row.num_waiting),
        str(row.num_wakes),
        f"{row.last_wake_s:.2f} s" if row.num_wakes else NONE,
        f"{row.next_wake_s:.2f} s",
    )


def format_memory(view: FleetView) -> str:
    """What every node has given away of its memory."""
    lines: list[str] = []
    for node in view.nodes:
        memory = node.memory
        disk = memory.disk_used_bytes
        parts = (
            ("device", memory.device_used_bytes, memory.device_budget_bytes),
            ("host", memory.host_used_bytes, memory.host_budget_bytes),
            *([("disk", disk, memory.disk_budget_bytes)] if disk else ()),
        )
        said = ", ".join(
            f"{name} {format_bytes(used)} of {format_bytes(budget) if budget else 'any'}"
            for name, used, budget in parts
        )
        lines.append(f"{node.node_id}: {said}{'' if node.is_connected else ' (away)'}")
    return "\n".join(lines)


def _describe_move(row: PlacementRow) -> str:
    """How far a move is, or what of one that was broken off is kept."""
    if row.tier is Tier.REMOTE and row.fetched_bytes:
        share = 100 * row.fetched_bytes // max(row.weights_bytes, 1)
        return f" ({'fetching, ' if row.is_moving else ''}{min(share, 99)} %)"
    if row.loaded_ratio:
        return f" (loading, {min(int(100 * row.loaded_ratio), 99)} %)"
    return " (moving)" if row.is_moving else ""


def _describe_rule(rule: PlacementRule | None, unix_s: float) -> str:
    """What operators want, in a word or two."""
    if rule is None:
        return NONE
    tier = rule.find_tier(unix_s)
    words: list[str] = []
    if rule.is_pinned(unix_s):
        words.append("pinned")
    elif tier is not None:
        left = "" if rule.until_unix_s is None else f" {max(rule.until_unix_s - unix_s, 0):.0f} s"
        words.append(f"{tier}{left}")
    if rule.service_class is not ServiceClass.BEST_EFFORT:
        words.append(rule.service_class)
    return ", ".join(words) or NONE


def _format_age(used_unix_ms: int, unix_ms: int) -> str:
    """How long ago, in the largest unit that says something."""
    if not used_unix_ms:
        return "never"
    age_s = max(unix_ms - used_unix_ms, 0) / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if age_s >= size:
            return f"{age_s / size:.0f} {unit} ago"
    return f"{age_s:.0f} s ago"


def _follow(read: Callable[[], FleetView]) -> None:
    """A table that is drawn anew every second."""
    from rich.live import Live

    with Live(_draw(read()), refresh_per_second=4) as live:
        try:
            while True:
                time.sleep(_LIVE_S)
                live.update(_draw(read()))
        except KeyboardInterrupt:
            return


def _draw(view: FleetView) -> "Table":
    """The table with the nodes' memory under it."""
    from rich.table import Table

    table = Table(*HEADINGS, caption=format_memory(view), box=None)
    for row in list_rows(view, view.unix_ms / 1000):
        style = {Tier.GPU: "green", Tier.HOST: "yellow"}.get(row.tier, "dim")
        table.add_row(*format_row(row, view.unix_ms), style=style)
    return table


def _set(name: str, admin_url: str | None, directory: Path, **fields: object) -> None:
    """Sets the model's rule. Raises: `CommandFailed` for a model that no node has."""
    with open_operator_client(admin_url, directory) as client:
        if all(name != row.model for row in list_rows(client.read_fleet(), time.time())):
            raise CommandFailed(f"No node moves the weights of a model {name}.")
        client.set_rule(model=name, **fields)
