"""What must hold for docker-compose.yml, each check a function from the file to its faults.

Functions, so that a test can hand each of them a file with a fault planted in it.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

import gateway.settings
import gpu_pool.settings
import hot_standby.settings
from cli.main import app
from cli.process_settings import resolve_file_variables
from contracts.settings import SettingsError, decode_settings
from tests.deploy.compose_file import ROOT, ComposeFile, list_file_variables, list_mounts

_KINDS: Mapping[str, Any] = {
    "gateway": gateway.settings.GatewaySettings,
    "node": gpu_pool.settings.PoolSettings,
    "standby": hot_standby.settings.StandbySettings,
}
_PREFIXES = {
    "gateway": gateway.settings.PREFIX,
    "node": gpu_pool.settings.PREFIX,
    "standby": hot_standby.settings.PREFIX,
}
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)(/[\w/-]+)")


def find_unknown_commands(compose: ComposeFile) -> list[str]:
    """Commands and options that the command line would refuse."""
    faults: list[str] = []
    for name, service in compose.own_services.items():
        command: Any = typer.main.get_command(app)
        words = [str(word) for word in service["command"]]
        try:
            while hasattr(command, "commands") and not words[0].startswith("-"):
                command = command.commands[words.pop(0)]
            command.make_context("hearth", words)
        except (KeyError, IndexError) as error:
            faults.append(f"{name}: no command {error}")
        except Exception as error:  # the parser's own family of usage errors
            faults.append(f"{name}: {error}")
    return faults


def find_undecodable_settings(compose: ComposeFile, secret: Path) -> list[str]:
    """Settings files and environment variables that a process would refuse at its start.

    `secret` stands for every mounted secret; its content must be a database URL.
    """
    faults: list[str] = []
    for name, table in compose.tables.items():
        process = name.partition("-")[0].replace("database", "gateway")
        service = compose.services[name]
        environ = {key: str(value) for key, value in service.get("environment", {}).items()}
        for variable in list_file_variables(service):
            environ[variable] = str(secret)
        kind, prefix = _KINDS[process], _PREFIXES[process]
        unknown = [key for key in environ if not key.startswith(prefix + "__")]
        faults.extend(f"{name}: nobody reads {key}" for key in unknown)
        try:
            decode_settings(kind, table, resolve_file_variables(kind, prefix, environ), prefix)
        except SettingsError as error:
            faults.append(f"{name}: {error}")
    return faults


def find_port_faults(compose: ComposeFile) -> list[str]:
    """Published ports, health checks and node addresses that lead nowhere."""
    faults: list[str] = []
    gateway = compose.tables["gateway"]
    listeners = {gateway["listen"]["port"], gateway["admin"]["port"]}
    published = {int(port.rpartition(":")[2]) for port in compose.services["gateway"]["ports"]}
    if published != listeners:
        faults.append(f"gateway publishes {published}, listens on {listeners}")
    for node in gateway["nodes"]:
        url = urlsplit(node["url"])
        table = compose.tables.get(str(url.hostname))
        if table is None or table["listen"]["port"] != url.port:
            faults.append(f"{node['node_id']}: nothing listens at {node['url']}")
        elif table["node_id"] != node["node_id"]:
            faults.append(f"{node['url']} is {table['node_id']}, not {node['node_id']}")
    for name, service in compose.own_services.items():
        for port, _ in find_health_addresses(service):
            if port != compose.tables[name]["listen"]["port"]:
                faults.append(f"{name}: the health check asks port {port}")
    return faults


def find_key_faults(compose: ComposeFile) -> list[str]:
    """Pair keys that the two ends would look for in different places, or that nobody makes."""
    faults: list[str] = []
    gateway = compose.tables["gateway"]
    made = {
        _locate(compose, "keys", word.partition("=")[2])
        for word in compose.services["keys"]["command"]
        if "=" in word
    }
    if _locate(compose, "gateway", gateway["key_ring"]["file"]) not in made:
        faults.append("nobody makes the key ring")
    for node in gateway["nodes"]:
        at_gateway = _locate(compose, "gateway", node["key_file"])
        entry = next(
            gate
            for gate in compose.tables[node["node_id"]]["gateways"]
            if gate["gateway_id"] == gateway["gateway_id"]
        )
        at_node = _locate(compose, node["node_id"], entry["key_file"])
        if at_gateway != at_node or at_gateway not in made:
            faults.append(f"{node['node_id']}: keys {at_gateway} and {at_node}, made {made}")
    return faults


def find_standby_faults(compose: ComposeFile) -> list[str]:
    """Gateways that hot standby would not find, or that would not know it."""
    faults: list[str] = []
    standby, gateway = compose.services["standby"], compose.services["gateway"]
    shown = list_file_variables(standby).get("HEARTH_STANDBY__OPERATOR_TOKEN_FILE")
    known = list_file_variables(gateway).get("HEARTH_GATEWAY__STANDBY__CREDENTIAL_FILE")
    if shown is None or shown != known:
        faults.append(f"standby shows {shown}, the gateway knows {known}")
    for address in compose.tables["standby"]["gateways"]:
        url = urlsplit(address["url"])
        if (url.hostname, url.port) != ("gateway", compose.tables["gateway"]["admin"]["port"]):
            faults.append(f"no operators' port at {address['url']}")
    if not set(standby["networks"]) <= set(gateway["networks"]):
        faults.append("standby is on a network that the gateway is not on")
    state = Path(compose.tables["standby"]["state_file"])
    if str(state.parent) not in list_mounts(standby):
        faults.append(f"{state} is in no volume")
    return faults


def find_health_faults(compose: ComposeFile) -> list[str]:
    """Health checks of ours that are missing, do not compile or ask for a path no code serves."""
    faults: list[str] = []
    for name, service in compose.own_services.items():
        if service.get("restart") == "no":
            continue
        test = service.get("healthcheck", {}).get("test", [])
        if test[:3] != ["CMD", "python", "-c"]:
            faults.append(f"{name}: no health check in Python")
            continue
        try:
            ast.parse(test[3])
        except SyntaxError as error:
            faults.append(f"{name}: {error}")
        if name == "standby":
            if f'"{compose.tables[name]["alive_file"]}"' not in test[3]:
                faults.append("standby: the health check looks at another file than it touches")
            continue
        package = "gpu_pool" if name.startswith("node") else "gateway"
        addresses = find_health_addresses(service)
        if not addresses:
            faults.append(f"{name}: the health check asks nobody")
        faults.extend(
            f"{name}: nothing in {package} serves {path}"
            for _, path in addresses
            if not _is_served(package, path)
        )
    return faults


def find_health_addresses(service: dict[str, Any]) -> list[tuple[int, str]]:
    """Port and path of every address in the health check of `service`."""
    test = service.get("healthcheck", {}).get("test", [])
    return [(int(port), path) for port, path in _URL.findall(" ".join(test))]


def find_undeclared_names(compose: ComposeFile) -> list[str]:
    """Volumes, secrets, configs and networks that are used but not declared, or the reverse."""
    used: dict[str, set[str]] = {
        key: set() for key in ("volumes", "secrets", "configs", "networks")
    }
    for service in compose.services.values():
        used["volumes"] |= set(list_mounts(service).values())
        used["secrets"] |= set(service.get("secrets", ()))
        used["networks"] |= set(service.get("networks", ()))
        used["configs"] |= {config["source"] for config in service.get("configs", ())}
    faults = [
        f"{kind}: {sorted(names ^ set(compose.content[kind]))}"
        for kind, names in used.items()
        if names != set(compose.content[kind])
    ]
    faults.extend(
        f"{name}: {value} is no mounted secret"
        for name, service in compose.services.items()
        for value in list_file_variables(service).values()
        if value.removeprefix("/run/secrets/") not in service.get("secrets", ())
    )
    return faults


def find_soft_spots(compose: ComposeFile) -> list[str]:
    """Services that run with more rights, or are reachable from further away, than they need."""
    faults: list[str] = []
    for name, service in compose.services.items():
        user = str(service.get("user", "0")).partition(":")[0]
        limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
        expectations = {
            "runs as root": user.isdigit() and int(user) > 0,
            "may write to its image": service.get("read_only") is True,
            "keeps capabilities": service.get("cap_drop") == ["ALL"],
            "may gain privileges": "no-new-privileges:true" in service.get("security_opt", ()),
            "has no memory limit": {"memory", "cpus", "pids"} <= set(limits),
            "is open to the network": all(
                port.startswith("127.0.0.1:") for port in service.get("ports", ())
            ),
        }
        faults.extend(f"{name} {what}" for what, holds in expectations.items() if not holds)
    return faults


def _locate(compose: ComposeFile, service: str, path: str) -> tuple[str, str]:
    """Volume and file name behind `path` inside `service`; two equal ones are the same file."""
    folder, _, name = path.rpartition("/")
    return list_mounts(compose.services[service]).get(folder, f"{service}, no volume"), name


def _is_served(package: str, path: str) -> bool:
    """True when the code of `package` names `path` as a text of its own."""
    return any(
        isinstance(node, ast.Constant) and node.value == path
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
