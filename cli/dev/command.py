"""`hearth dev`: the order in which everything comes up, and how it ends.

Owns that order alone; reading `run_dev` is reading what happens. Read next: `cli.dev.preparation`,
`cli.dev.supervisor`, `cli.dev.readiness`.
"""

import asyncio
import socket
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli.terminal import CommandFailed

if TYPE_CHECKING:  # imported for real by the function that needs them, `--help` does not
    from cli.dev.home import DevAccess, DevHome
    from cli.dev.readiness import ReadinessProbe
    from cli.dev.settings_files import DevPorts
    from cli.dev.start_report import StartReport
    from cli.dev.supervisor import Supervisor

START_TIMEOUT_S: Final = 120.0
LOAD_TIMEOUT_S: Final = 900.0


def dev(
    directory: Annotated[
        Path, typer.Option("--dir", help="State folder: keys, database, models, logs.")
    ] = Path(".hearth"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Clients' port.")] = 8787,
    admin_port: Annotated[
        int, typer.Option("--admin-port", min=1, max=65535, help="Operators' port.")
    ] = 8788,
    node_port: Annotated[
        int, typer.Option("--node-port", min=1, max=65535, help="Port between gateway and node.")
    ] = 8790,
) -> None:
    """Start everything on this machine: gateway, CPU node and models.

    The first start makes an account and credentials, later ones use them again. When all is ready
    it prints lines to paste and keeps running until Ctrl-C. All listeners are on loopback.

    Examples: `hearth dev`, `hearth dev --dir /tmp/second --port 9787 --admin-port 9788
    --node-port 9790`
    """
    from cli.dev.home import DevHome, HomeLock
    from cli.dev.settings_files import DevPorts
    from cli.dev.stop_signals import StopSignals

    home = DevHome(directory)
    home.create()
    with HomeLock(home), StopSignals() as signals:
        refuse_taken_ports({"--port": port, "--admin-port": admin_port, "--node-port": node_port})
        run_dev(home, DevPorts(port, admin_port, node_port), signals.stop, signals.is_urgent)


def run_dev(home: "DevHome", ports: "DevPorts", stop: Event, is_urgent: Event) -> None:
    """Returns after `stop`. Raises: `CommandFailed`, `SettingsError`, `ServiceError`."""
    from cli.dev.child_process import ChildProcess, create_hearth_command
    from cli.dev.greeting import find_own_name, format_greeting
    from cli.dev.home import DevAccess
    from cli.dev.preparation import prepare
    from cli.dev.readiness import ReadinessProbe
    from cli.dev.settings_files import LOOPBACK
    from cli.dev.start_report import create_start_report
    from cli.dev.supervisor import Supervisor
    from cli.served_models import list_served_models

    with create_start_report() as report:
        report.begin("Keys and database")
        models = list_served_models(home.models)
        prepared = asyncio.run(prepare(home, ports, models))
        report.finish("Keys and database", "created" if prepared.is_first_run else "found")
        access = DevAccess(
            base_url=f"http://{LOOPBACK}:{ports.gateway}",
            admin_url=f"http://{LOOPBACK}:{ports.admin}",
            account_id=prepared.credentials.account_id,
            api_token=prepared.credentials.api_token.reveal(),
            admin_token=prepared.credentials.operator.reveal(),
            models=tuple(model.name for model in models),
        )
        children = (
            ChildProcess(
                "node",
                create_hearth_command("node", "--config", str(home.node_settings.resolve())),
                home.logs / "node.log",
            ),
            ChildProcess(
                "gateway",
                create_hearth_command("gateway", "--config", str(home.gateway_settings.resolve())),
                home.logs / "gateway.log",
            ),
        )
        supervisor = Supervisor(children, stop, print)
        probe = ReadinessProbe(access.base_url, access.admin_url, access.admin_token)
        try:
            is_ready = start_and_wait(supervisor, probe, access, report, stop)
            failed = probe.list_failed_models() if is_ready else {}
            access = drop_failed_models(access, failed)
        except BaseException:
            supervisor.close(is_urgent.is_set)
            raise
    try:
        if is_ready:
            home.write_access(access)
            print(format_greeting(access, str(home.root), find_own_name()), flush=True)
            for name, reason in failed.items():
                print(f"Not served: {name}. {reason}", flush=True)
            supervisor.run()
    finally:
        print("Stopping.", flush=True)
        supervisor.close(is_urgent.is_set)


def start_and_wait(
    supervisor: "Supervisor",
    probe: "ReadinessProbe",
    access: "DevAccess",
    report: "StartReport",
    stop: Event,
) -> bool:
    """Starts the children; True when every model answers, comes when asked for, or has failed;
    False after `stop`.

    Raises: `CommandFailed` when a part dies or takes too long.
    """
    from cli.dev.readiness import wait_for

    def is_settled() -> bool:
        ready = set(probe.list_ready_models())
        return set(access.models) <= ready or set(access.models) <= (
            ready | set(probe.list_failed_models()) | set(probe.list_models_elsewhere())
        )

    def describe_models() -> str:
        ready = ", ".join(probe.list_ready_models())
        elsewhere = probe.list_models_elsewhere()
        failed = probe.list_failed_models()  # asked after it: who has failed is not on the device
        waiting = ", ".join(name for name in elsewhere if name not in failed)
        return f"{ready or 'none'}; when they are asked for: {waiting}" if waiting else ready

    models = f"Models ({len(access.models)})"
    steps = (
        ("Gateway", probe.is_gateway_ready, START_TIMEOUT_S, lambda: access.base_url),
        ("Node", probe.has_node, START_TIMEOUT_S, lambda: "connected"),
        (models, is_settled, LOAD_TIMEOUT_S, describe_models),
    )
    for part, _, _, _ in steps:
        report.begin(part)
    supervisor.start()
    for part, condition, timeout_s, describe in steps:
        if not wait_for(condition, part, timeout_s, stop, supervisor.refuse_deaths):
            return False
        report.finish(part, describe())
    return True


def drop_failed_models(access: "DevAccess", failed: dict[str, str]) -> "DevAccess":
    """`access` with the models that came up. Raises: `CommandFailed` when there is none."""
    models = tuple(name for name in access.models if name not in failed)
    if not models:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
        raise CommandFailed(f"No model came up.{reasons}")
    return msgspec.structs.replace(access, models=models)


def refuse_taken_ports(ports: dict[str, int]) -> None:
    """Raises: `CommandFailed` when two options name one port or something listens there."""
    for option, port in ports.items():
        if list(ports.values()).count(port) > 1:
            raise CommandFailed(f"{option} {port} is given to another part too; choose another.")
        with socket.socket() as probe:
            # As servers do it, so that connections of an earlier run do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise CommandFailed(
                    f"Port {port} ({option}) cannot be used: {error.strerror}. Stop the program "
                    f"that listens there, or choose another port with {option}."
                ) from error
