"""What is claimed of the fleet, in the order in which it is tried.

Each function tries one thing and ends in claims that hold, or in a `ProofError`.
Read next: `__main__`.
"""

import json
import time
from dataclasses import dataclass

from tools.compose_proof.compose_project import CONFIG, ComposeProject
from tools.compose_proof.gateway_client import Tenant, list_ready_regions, poll
from tools.compose_proof.narration import claim, say, step

FILES = ("docker-compose.yml",)
GPU_FILES = (*FILES, "docker-compose.gpu.yml")
TWO_GATEWAYS_FILES = (*FILES, "docker-compose.two-gateways.yml")
OWN_IMAGES = ("hearth-gateway:local", "hearth-node:local")
FIND_COMPILERS = "for name in cc gcc g++ c++ clang make ld; do command -v $name; done; true"
SETTLED_S = 10.0
"""Journal to ledger each half second, ledger to sums each two, and the writing itself: thrice."""
LOOKED_AT = {
    *("clocks", "configuration", "database", "disk", "keys"),
    *("limits", "machine", "nodes", "traces"),
}


@dataclass(frozen=True)
class Tenants:
    """Three accounts that differ in where they may be computed for, and an operator."""

    eu: Tenant
    us: Tenant
    anywhere: Tenant
    operator: str


def check_files(project: ComposeProject) -> None:
    """The files are whole, with the override for GPUs and without."""
    project.compose("config", "--quiet")
    claim(True, "docker compose config accepts docker-compose.yml")
    project.compose("config", "--quiet", files=TWO_GATEWAYS_FILES)
    claim(True, "and with docker-compose.two-gateways.yml")
    printed = project.compose("config", "--format", "json", files=GPU_FILES)
    services = json.loads(printed)["services"]
    gpus = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in sorted(services.items())
        if name.startswith("node-")
    ]
    claim(
        gpus == [["1"], ["0"]], "with docker-compose.gpu.yml each node has a GPU of its own", gpus
    )


def check_rights(project: ComposeProject) -> None:
    """Containers have no more rights than they need, images no compilers."""
    containers = project.inspect()
    users = {item["Config"]["User"].partition(":")[0] for item in containers}
    claim(bool(users) and users.isdisjoint({"", "0", "root"}), "no container runs as root", users)
    hosts = [item["HostConfig"] for item in containers]
    hardened = all(
        host["ReadonlyRootfs"]
        and host["CapDrop"] == ["ALL"]
        and "no-new-privileges:true" in host["SecurityOpt"]
        for host in hosts
    )
    claim(hardened, "no container can write to its image, has capabilities or may gain rights")
    published = {
        binding["HostIp"]
        for host in hosts
        for bindings in (host["PortBindings"] or {}).values()
        for binding in bindings
    }
    claim(published == {"127.0.0.1"}, "ports are published on loopback alone", published)
    for image in OWN_IMAGES:
        shell = ["run", "--rm", "--entrypoint", "sh", image, "-c", FIND_COMPILERS]
        found = project.engine.run(*shell)
        claim(not found, f"{image} has no compiler", found)
        size = int(project.engine.run("image", "inspect", "-f", "{{.Size}}", image))
        say(f"      and {size / 1e6:.0f} MB")


def create_tenants(project: ComposeProject) -> Tenants:
    """Three accounts with a token each, made by the commands of the guide."""

    operator = project.ask_hearth("operators", "create", "proof")["value"]
    eu, us = create_tenant(project, "eu", "weur"), create_tenant(project, "us", "enam")
    tenants = Tenants(eu, us, create_tenant(project, "anywhere"), operator)
    claim(True, "accounts, tokens and an operator are made inside the gateway's container")
    return tenants


def create_tenant(project: ComposeProject, name: str, *regions: str) -> Tenant:
    """An account with a token; without regions it is bound to none."""
    words = [word for region in regions for word in ("--region", region)]
    account_id = project.ask_hearth("accounts", "create", name, *words)["account_id"]
    rights = ["-p", "workers ai read", "-p", "billing read"]
    issued = project.ask_hearth("tokens", "create", account_id, "--name", name, *rights)
    return Tenant(account_id, issued["value"], project.ports["GATEWAY_PORT"])


def check_regions(project: ComposeProject, tenants: Tenants) -> None:
    """Both regions compute, each for those who may use it."""
    admin = project.ports["ADMIN_PORT"]
    both = poll(lambda: len(list_ready_regions(admin, tenants.operator)) == 2, 120)
    claim(both, "the nodes of both regions are ready")
    for tenant, region in ((tenants.eu, "weur"), (tenants.us, "enam")):
        reply = tenant.ask()
        served = reply.status == 200 and reply.region == region
        claim(served, f"an account that is bound to {region} is answered in {region}", reply)
    reply = tenants.anywhere.ask(x_hearth_regions="enam")
    claim(reply.region == "enam", "an account bound to none may ask for enam", reply)
    refused = tenants.eu.ask(x_hearth_regions="enam")
    claim(refused.status == 403, "an account bound to weur cannot ask for enam", refused)
    *events, last = list(tenants.anywhere.stream(32))[1:]
    claim(last == "[DONE]" and len(events) > 1, f"a stream comes in {len(events)} events", last)


def check_health(project: ComposeProject) -> None:
    """The doctor finds nothing that does not work, from inside the gateway's container."""
    findings = project.ask_hearth("doctor")["findings"]
    areas = {finding["area"] for finding in findings}
    claim(areas >= LOOKED_AT, f"hearth doctor looks at {', '.join(sorted(LOOKED_AT))}", findings)
    broken = [finding["what"] for finding in findings if finding["level"] == "problem"]
    claim(not broken, "and finds nothing that does not work", broken)
    proven = [f["what"] for f in findings if "has proved itself" in f["what"]]
    claim(len(proven) == 2, "and both nodes have proved themselves to it", findings)


def check_loss_of_a_node(project: ComposeProject, tenants: Tenants) -> None:
    """One region's node is killed in mid-stream: the other goes on, residency holds."""
    stream = tenants.anywhere.stream(1500)
    region = next(stream)
    begun = [next(stream) for _ in range(3)]
    lost, left = f"node-{region}", {"weur": "enam", "enam": "weur"}[region]
    with step(f"killing {lost} while it streams"):
        project.compose("kill", lost)
    events = [*begun, *stream]
    claim(events[-1] == "[DONE]", f"the stream went on, {len(events)} events", events[-1])
    bound, other = (tenants.eu, tenants.us) if region == "weur" else (tenants.us, tenants.eu)
    claim(
        poll(lambda: tenants.anywhere.ask().region == left, 30),
        f"who is bound to no region is answered in {left}",
    )
    reply = other.ask()
    claim(reply.status == 200, f"who is bound to {left} does not notice", reply)
    refused = bound.ask()
    claim(refused.status >= 400, f"who is bound to {region} is refused, not sent abroad", refused)
    with step(f"starting {lost} again"):
        project.start()
    back = poll(lambda: bound.ask().region == region, 90)
    claim(back, f"who is bound to {region} is answered there again")


def check_restart(project: ComposeProject, tenants: Tenants) -> None:
    """Every container is replaced; what is in volumes is there again."""
    everyone = (tenants.eu, tenants.us, tenants.anywhere)
    usage = _read_settled_usage(everyone)
    with step("taking everything down but the volumes, and up again"):
        project.compose("down", "--timeout", "20")
        project.start()
    after = [tenant.read_usage() for tenant in everyone]
    claim(after == usage, f"tokens and the ledger are as they were: {after}", usage)
    answered = poll(lambda: tenants.eu.ask().status == tenants.us.ask().status == 200, 60)
    claim(answered, "both regions answer again")
    project.compose("exec", "-T", "gateway", "hearth", "audit", "verify", *CONFIG)
    claim(True, "the audit log fits its hashes and signed heads")


def _read_settled_usage(tenants: tuple[Tenant, ...]) -> list[dict[str, int]]:
    """Everybody's usage, once it has been the same for longer than an answer takes to its sums."""
    latest = [tenant.read_usage() for tenant in tenants]
    while True:
        time.sleep(SETTLED_S)
        usage = [tenant.read_usage() for tenant in tenants]
        if usage == latest:
            return usage
        latest = usage
