"""`hearth node enrol | join | rotate | remove`: how a node and a gateway come by a key, and part.

Owns the two ends of an enrolment token and the files that it becomes; a rotation is the gateway's
and the node's own affair. With `membership` the gateway's end is a file in its folder of members,
which it reads at once; else it is a section for its settings. Must not print a key but inside the
token. Read next: `contracts.enrolment`, `contracts.pair_key`, `gateway.upstream.link`.
"""

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli.operator_client import open_operator_client
from cli.operator_options import DEFAULT_DIRECTORY, AdminUrlOption, DirectoryOption
from cli.process_settings import read_settings
from cli.tenancy_access import record_first
from cli.terminal import CommandFailed
from contracts.enrolment import Enrolment, format_enrolment, parse_enrolment
from contracts.ids import (
    GatewayId,
    NodeId,
    RegionId,
    find_jurisdiction_fault,
    is_node_id,
)
from contracts.pair_key import PAIR_KEY_BYTES, PairKey, PairKeys, format_pair_keys

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

DEFAULT_VALID_FOR_S: Final = 3600
_NODE_SECTION: Final = """[[nodes]]
node_id = "{node_id}"
region = "{region}"
url = "{url}"
key_file = "{key_file}"{more}"""
_GATEWAY_SECTION: Final = """[[gateways]]
gateway_id = "{gateway_id}"
key_file = "{key_file}\""""
_IS_THERE: Final = (
    "{file} exists already, and keys are never replaced in place: take it away if no process uses "
    "it, or name another file by `--key-file`."
)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="As settings name it.")]
JurisdictionOption = Annotated[
    str | None,
    typer.Option(
        "--jurisdiction",
        help="Whose law holds there, such as `eu`; may be left out where `[[routing.regions]]` "
        "says so.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key-file", help="Where the key goes; in a folder that the process may write."),
]


def add_enrolment_commands(app: typer.Typer) -> None:
    """Registers them."""
    app.command("enrol")(enrol)
    app.command("join")(join)
    app.command("rotate")(rotate)
    app.command("remove")(remove)


def enrol(
    node: NodeArgument,
    region: Annotated[str, typer.Option("--region", help="Where it stands.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's settings.")],
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Where the gateway finds it: wss://host:8790. With `membership` it may be left "
            "out: then it is where the node says.",
        ),
    ] = None,
    jurisdiction: JurisdictionOption = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext", help="ws:// to another machine, on a network that is trusted."
        ),
    ] = False,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Who issues the node's certificate.")
    ] = None,
    key_file: KeyFileOption = None,
    valid_for_s: Annotated[
        int, typer.Option("--valid-for", min=60, help="How long the token is good, in seconds.")
    ] = DEFAULT_VALID_FOR_S,
) -> None:
    """At a gateway: make a key for a new node, and the token that brings it there once.

    With `membership` in the settings the running gateway takes the node up as soon as it is there,
    in the region and jurisdiction that are given here, whatever the node says. Else the command
    prints the section for the settings. Prints the token for `hearth node join`. The key is secret
    until the two have met; then they agree on another, and the token opens nothing.

    Where the settings name regions, the node's must be one of them, or the gateway's own.

    It goes into the audit log first: without the gateway's database nothing is enrolled.

    Example: `hearth node enrol gpu-7 --region weur --jurisdiction eu --config gateway.toml`
    """
    from gateway.settings import PREFIX, GatewaySettings

    settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    if not is_node_id(node):
        raise CommandFailed("A node's name has letters, digits, `-`, `_`, `.`; at most 63.")
    if any(known.node_id == node for known in settings.nodes):
        raise CommandFailed(f"{node} is in {config} already; `hearth node rotate` renews its key.")
    members = None if settings.membership is None else settings.membership.folder
    if members is None and url is None:
        raise CommandFailed(f"{config} has no `membership`: say by `--url` where {node} is found.")
    _check_section(node, url or "wss://node:1", region, allow_plaintext)
    law = _find_jurisdiction(settings, RegionId(region), jurisdiction)
    default = f"{settings.gateway_id}--{node}.key" if members is None else members / f"{node}.key"
    file = key_file or Path(default)
    until_unix_s = int(time.time()) + valid_for_s
    key = PairKey(secrets.token_bytes(PAIR_KEY_BYTES), until_unix_s)
    _require_new(file)
    record_first(
        config,
        lambda log: log.note_enrolment(
            NodeId(node), settings.gateway_id, RegionId(region), key.name
        ),
    )
    _write_key(file, key)
    token = format_enrolment(Enrolment(settings.gateway_id, NodeId(node), key.key, until_unix_s))
    if members is None:
        assert url is not None
        more = "\nallow_plaintext = true" if allow_plaintext else ""
        more += f'\nca_file = "{ca_file}"' if ca_file is not None else ""
        section = _NODE_SECTION.format(
            node_id=node, region=region, url=url, key_file=file, more=more
        )
        print(f"Add to {config}, then restart the gateway:\n\n{section}\n")
    else:
        _write_member(members, node, file, (region, law, url, ca_file, allow_plaintext))
        print(f"{settings.gateway_id} takes {node} up when it is there; no restart is needed.\n")
    print(f"At {node}, within {valid_for_s} s:\n\nhearth node join {token}")


def join(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Of `hearth node enrol`.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The node's settings, to compare names.")
    ] = None,
    key_file: KeyFileOption = None,
) -> None:
    """At a node: take the key that a gateway has made for it.

    Prints the section for the node's settings. The key is good until the token's time is over, and
    for good once the gateway has connected and the two have agreed on another.

    Example: `hearth node join hearth_enrol_… --config node.toml`
    """
    enrolment = parse_enrolment(token)
    if enrolment.until_unix_s <= time.time():
        raise CommandFailed("This token's time is over: `hearth node enrol` makes another.")
    if config is not None:
        from gpu_pool.settings import PREFIX, PoolSettings

        settings = read_settings(PoolSettings, config, PREFIX, os.environ)
        if settings.node_id != enrolment.node_id:
            raise CommandFailed(f"This token is for {enrolment.node_id}, not {settings.node_id}.")
    # Both names: one folder may hold the keys of several nodes, and a certificate's key as well.
    file = key_file or Path(f"{enrolment.node_id}--{enrolment.gateway_id}.key")
    _write_key(file, PairKey(enrolment.key, enrolment.until_unix_s))
    section = _GATEWAY_SECTION.format(gateway_id=GatewayId(enrolment.gateway_id), key_file=file)
    print(f"Add to the node's settings, then start it:\n\n{section}")


def rotate(
    node: NodeArgument,
    admin_url: AdminUrlOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Replace the key that a gateway shares with a node, while both serve.

    Both keys are valid until the gateway has connected with the new one; streams end on the old
    connection. Each gateway process has a key of its own: name each by `--admin-url`.

    Example: `hearth node rotate gpu-7`
    """
    with open_operator_client(admin_url, directory) as client:
        name = client.rotate_node_key(node)
    print(f"{node} and the gateway share the key {name} now.")


def remove(
    node: NodeArgument,
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's settings.")],
) -> None:
    """At a gateway with `membership`: end a node's enrolment, and destroy its key here.

    The running gateway closes the connection within seconds; streams that are open there go on at
    other nodes. `hearth node drain NODE --wait` before it lets them end. What a token that was not
    used yet would bring is refused, too. Each gateway process has a folder of its own.

    Example: `hearth node remove gpu-7 --config gateway.toml`
    """
    from contracts.settings import SettingsError
    from gateway.membership.enrolments import read_enrolment, remove_enrolment
    from gateway.settings import PREFIX, GatewaySettings

    settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    folder = None if settings.membership is None else settings.membership.folder
    if folder is None or not os.path.lexists(folder / f"{node}.toml"):
        raise CommandFailed(_explain_stranger(node, config, settings, folder))
    try:
        read_enrolment(folder, NodeId(node))
        record_first(config, lambda log: log.note_removal(NodeId(node), settings.gateway_id))
        remove_enrolment(folder, NodeId(node))
    except (OSError, SettingsError) as error:
        raise CommandFailed(f"{node} is not enrolled here: {error}") from error
    print(f"{node} is no member of {settings.gateway_id} any more.")


def _explain_stranger(
    node: str, config: Path, settings: "GatewaySettings", folder: Path | None
) -> str:
    """Why a node that is not enrolled cannot be removed, and what can be done instead."""
    for known in settings.nodes:
        if known.node_id == node:
            return (
                f"{node} is no enrolled member but a node of the settings: take its `[[nodes]]` "
                f"section out of {config}, restart the gateway, and remove {known.key_file}."
            )
    if folder is None:
        return f"{config} has no `membership`, and no `[[nodes]]` of the name {node}."
    return (
        f"{node} is not enrolled here: there is no {folder / node}.toml, and no `[[nodes]]` of "
        f"that name in {config}. `hearth nodes` lists who is there."
    )


def _write_member(
    folder: Path,
    node: str,
    key_file: Path,
    said: tuple[str, str, str | None, Path | None, bool],
) -> None:
    """The node's file in the folder of members. Raises: `CommandFailed`."""
    from gateway.membership.enrolments import NodeEnrolment, write_enrolment

    region, jurisdiction, url, ca_file, allow_plaintext = said
    is_beside = key_file.resolve().parent == folder.resolve()
    enrolment = NodeEnrolment(
        region=RegionId(region),
        jurisdiction=jurisdiction,
        key_file=key_file.name if is_beside else str(key_file.resolve()),
        url=url,
        ca_file=None if ca_file is None else ca_file.resolve(),
        allow_plaintext=allow_plaintext,
    )
    try:
        write_enrolment(folder, NodeId(node), enrolment)
    except OSError as error:
        key_file.unlink(missing_ok=True)
        raise CommandFailed(f"{node} cannot be enrolled in {folder}: {error}.") from error


def _check_section(node: str, url: str, region: str, allow_plaintext: bool) -> None:
    """Raises: `CommandFailed` for a section with which no gateway would start."""
    from gateway.settings import NodeSettings

    section = NodeSettings(
        node_id=NodeId("node"), url="wss://node:1", key_file=Path(), allow_plaintext=True
    )
    try:
        section = msgspec.structs.replace(
            section, node_id=NodeId(node), url=url, region=RegionId(region)
        )
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    try:
        msgspec.structs.replace(section, allow_plaintext=allow_plaintext)
    except ValueError as error:
        raise CommandFailed(
            f"The gateway refuses {url}, for the way to another machine would not be encrypted: "
            "give a wss:// URL, or say `--allow-plaintext` where the network is itself trusted. "
            "Nothing has been written."
        ) from error


def _find_jurisdiction(settings: "GatewaySettings", region: RegionId, said: str | None) -> str:
    """Whose law holds for a node in `region`: what is `said`, else what the catalogue says.

    Raises: `CommandFailed` for a region that the catalogue lacks, where accounts that are bound to
    regions would never find the node, for another law than the catalogue's, with which the gateway
    would believe nothing that the node says, and for what names none.
    """
    fault = find_jurisdiction_fault(said) if said else None
    if fault is not None:
        raise CommandFailed(fault)
    catalogue = {known.name: known.jurisdiction for known in settings.routing.regions}
    law = catalogue.get(region)
    if law is None and catalogue and region != settings.region:
        raise CommandFailed(
            f"The gateway knows no region `{region}`, only {', '.join(sorted(catalogue))}: mind "
            "the spelling, or add it to the settings as `[[routing.regions]]` first."
        )
    if law is not None and said not in (None, law):
        raise CommandFailed(
            f"`{region}` is in the jurisdiction `{law}` by `[[routing.regions]]`, not in `{said}`."
        )
    return law or said or ""


def _require_new(file: Path) -> None:
    """Raises: `CommandFailed` when there is such a file, whatever it is."""
    if os.path.lexists(file):
        raise CommandFailed(_IS_THERE.format(file=file))


def _write_key(file: Path, key: PairKey) -> None:
    """A new file for its owner alone. Raises: `CommandFailed`, also when there is one."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise CommandFailed(_IS_THERE.format(file=file)) from error
    except OSError as error:
        raise CommandFailed(f"Cannot write {file}: {error.strerror}.") from error
    try:
        with os.fdopen(descriptor, "w") as content:
            content.write(format_pair_keys(PairKeys((key,))))
            content.flush()
            os.fsync(descriptor)
    except OSError as error:
        file.unlink()  # part of a key would be in the way of the next try
        raise CommandFailed(f"Cannot write {file}: {error.strerror}.") from error
