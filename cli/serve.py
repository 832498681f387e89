"""`hearth gateway`, `hearth node`, `hearth standby`: settings from file and environment, a process.

Owns the three commands; must not know what the settings mean. Read next: `cli.process_settings`,
`gateway.app`, `gpu_pool.node`, `hot_standby.controller`.
"""

import errno
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from cli.enrolment import add_enrolment_commands
from cli.nodes import add_node_commands, nodes
from cli.process_settings import read_settings
from cli.terminal import CommandFailed

STDIN_FILENO: Final = 0

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; without it, defaults apply.")
]
StopWithParentOption = Annotated[
    bool, typer.Option("--stop-with-parent", hidden=True, help="Stop when standard input closes.")
]


_node_app: Final = typer.Typer(rich_markup_mode="markdown")


def add_process_commands(app: typer.Typer) -> None:
    """Registers what runs the platform's processes, and what sees to the nodes among them."""
    app.command("gateway")(gateway)
    add_node_commands(_node_app)
    add_enrolment_commands(_node_app)
    app.add_typer(_node_app, name="node")
    app.command("nodes")(nodes)
    app.command("standby")(standby)


def gateway(config: ConfigOption = None, stop_with_parent: StopWithParentOption = False) -> None:
    """Run a gateway in the foreground.

    Settings come from the file, then from `HEARTH_GATEWAY__SECTION__FIELD` variables.

    Example: `HEARTH_GATEWAY__LISTEN__PORT=8787 hearth gateway --config gateway.toml`
    """
    from gateway.process import run_gateway
    from gateway.settings import PREFIX, GatewaySettings

    settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    if stop_with_parent:
        stop_when_input_closes()
    with _ports_explained():
        run_gateway(settings)


@_node_app.callback(invoke_without_command=True)
def node(
    context: typer.Context,
    config: ConfigOption = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Serve all models of this folder and the bundled one too."),
    ] = None,
    stop_with_parent: StopWithParentOption = False,
) -> None:
    """Run a node of the pool in the foreground, or, with a command behind it, see to one.

    Settings come from the file, then from `HEARTH_POOL__SECTION__FIELD` variables.

    Examples: `HEARTH_POOL__NODE_ID=gpu-7 hearth node --config node.toml`,
    `hearth node --config node.toml --store /var/lib/hearth/models`
    """
    if context.invoked_subcommand is not None:
        return
    from cli.served_models import list_served_models
    from gpu_pool.node import run_node
    from gpu_pool.settings import PREFIX, PoolSettings

    settings = read_settings(PoolSettings, config, PREFIX, os.environ)
    if store is not None:
        named = {model.name for model in settings.models}
        stored = (model for model in list_served_models(store) if model.name not in named)
        settings = msgspec.structs.replace(settings, models=(*settings.models, *stored))
    if stop_with_parent:
        stop_when_input_closes()
    with _ports_explained():
        run_node(settings)


def standby(config: ConfigOption = None, stop_with_parent: StopWithParentOption = False) -> None:
    """Run hot standby in the foreground: it plans which weights are where.

    Settings come from the file, then from `HEARTH_STANDBY__SECTION__FIELD` variables; an operator's
    token is best kept in a file, named by `HEARTH_STANDBY__OPERATOR_TOKEN_FILE`.

    Example: `HEARTH_STANDBY__OPERATOR_TOKEN_FILE=token hearth standby --config standby.toml`
    """
    from hot_standby.controller import run_controller
    from hot_standby.settings import PREFIX, StandbySettings

    settings = read_settings(StandbySettings, config, PREFIX, os.environ)
    if stop_with_parent:
        stop_when_input_closes()
    run_controller(settings)


def stop_when_input_closes() -> None:
    """Sends this process SIGTERM once standard input ends.

    The parent holds the other end of that pipe, so that even its sudden death (SIGKILL) leaves no
    orphan, on every POSIX system.
    """

    def watch() -> None:
        # os.read, for a daemon thread inside a buffered read would break the interpreter's exit.
        while os.read(STDIN_FILENO, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stop-with-parent", daemon=True).start()


@contextmanager
def _ports_explained() -> Generator[None]:
    """Turns a port that cannot be had into a sentence. Raises: `CommandFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        raise CommandFailed(f"A port cannot be used: {error}.") from error
