"""What is claimed of hot standby: its plans move weights, its credential opens nothing else, and
nodes go on without it.

Read next: `hot_standby.controller`, `claims` (everything else).
"""

import time
from typing import Any

from tools.compose_proof.claims import Tenants
from tools.compose_proof.compose_project import ComposeProject
from tools.compose_proof.gateway_client import MODEL, poll, read_operators_port
from tools.compose_proof.narration import claim, step

NODE = "node-weur"
OTHER = "@hearth/second"
WEIGHTS = "gpu_pool/bundled/tiny_chat"
"""Those that come with Hearth, under another name: no other model is at hand here."""
ADD_OTHER = ("models", "add", OTHER, "--from=/checkpoint", "--store=/var/lib/hearth/models")
QUIET_S = 10.0
"""Longer than hot standby takes to notice and to remind."""


def check_standby(project: ComposeProject, tenants: Tenants) -> None:
    """Two models on a node that holds one, with the planner, without it and with it again."""
    _check_rights(project, tenants)
    planned = poll(lambda: all(node["plan"] for node in _read_nodes(project)), 30)
    claim(planned, "both nodes have a plan of hot standby's")
    with step(f"adding a second model to {NODE}, which has room for one"):
        mounted = f"--volume={project.folder / WEIGHTS}:/checkpoint:ro"
        project.compose("run", "--rm", "--no-deps", "-T", mounted, NODE, *ADD_OTHER)
        project.compose("restart", "--timeout", "20", NODE)
        project.start()
    moved = poll(lambda: _read_tiers(project) == {MODEL: "gpu", OTHER: "disk"}, 60)
    moved = moved or _read_tiers(project) == {MODEL: "gpu", OTHER: "host"}
    claim(moved, f"the promised one is on the device of {NODE}", _read_tiers(project))
    wakes = _count_wakes(project)
    reply = tenants.eu.ask(OTHER)
    claim(reply.status == 200, "the other is woken by a request, and takes its room", reply)
    back = poll(lambda: _count_wakes(project) == wakes + 1 and _is_near(project), 60)
    claim(back, "hot standby's plan brings the promised one back, without a request")
    with step("killing hot standby"):
        project.compose("kill", "standby")
    reply = tenants.eu.ask(OTHER)
    claim(reply.status == 200, "without hot standby the node wakes models all the same", reply)
    time.sleep(QUIET_S)
    tiers = _read_tiers(project)
    claim(tiers[OTHER] == "gpu" != tiers[MODEL], "and leaves them where they are", tiers)
    reply = tenants.eu.ask()
    claim(reply.status == 200, "until a request wants it otherwise", reply)
    reply = tenants.eu.ask(OTHER)
    away = poll(lambda: not _is_near(project), 10)
    claim(reply.status == 200 and away, "or another", reply)
    with step("starting hot standby again"):
        project.start()
    back = poll(lambda: _is_near(project), 60)
    claim(back, "hot standby has taken over: the promised one is back on the device")


def _check_rights(project: ComposeProject, tenants: Tenants) -> None:
    """Its credential is hot standby's alone."""
    port, credential = project.ports["ADMIN_PORT"], project.read_secret("standby_credential")
    statuses = {
        path: [
            read_operators_port(port, who, path).status for who in (credential, tenants.operator)
        ]
        for path in ("placement", "accounts", "operators", "audit")
    }
    wanted = {path: [200 if path == "placement" else 401, 200] for path in statuses}
    claim(statuses == wanted, "its credential opens the planner's routes and no other", statuses)


def _read_nodes(project: ComposeProject) -> list[dict[str, Any]]:
    """The nodes as hot standby itself reads them."""
    credential = project.read_secret("standby_credential")
    reply = read_operators_port(project.ports["ADMIN_PORT"], credential, "placement")
    return reply.json["result"]["nodes"]


def _read_models(project: ComposeProject) -> dict[str, dict[str, Any]]:
    """The node's models, as it last reported them."""
    (node,) = (node for node in _read_nodes(project) if node["node_id"] == NODE)
    return {placed["name"]: placed for placed in node["placements"]}


def _read_tiers(project: ComposeProject) -> dict[str, str]:
    """Where they are."""
    return {name: placed["tier"] for name, placed in _read_models(project).items()}


def _is_near(project: ComposeProject) -> bool:
    """True once the promised model is on the device."""
    return _read_tiers(project)[MODEL] == "gpu"


def _count_wakes(project: ComposeProject) -> int:
    """How often the promised model has come to the device in this life of the node."""
    return _read_models(project)[MODEL]["num_wakes"]
