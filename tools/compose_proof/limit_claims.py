"""What is claimed of Valkey: limits are counted there, together, and go on without it.

Read next: `gateway.admission.redis_limiter`, `claims` (everything else).
"""

import time
from collections import Counter
from dataclasses import replace

from tools.compose_proof.claims import TWO_GATEWAYS_FILES, Tenants, create_tenant
from tools.compose_proof.compose_project import ComposeProject
from tools.compose_proof.gateway_client import Tenant, poll, read_operators_port
from tools.compose_proof.narration import claim, step

PER_MIN = 5
TRIES = 8
ADMITTED = (PER_MIN, PER_MIN + 1)
"""One place is free again after twelve seconds."""
SEEN_S = 3.0
"""A limit holds at every gateway within two."""


def check_limits(project: ComposeProject, tenants: Tenants) -> None:
    """Counts in Valkey, takes Valkey away, gives it back."""
    bounded = _create_bounded(project, "bounded")
    counted = _try_often(bounded)
    good = counted[200] in ADMITTED and counted[200] + counted[429] == TRIES
    claim(good, f"of {TRIES} requests {PER_MIN} a minute are let through", counted)
    keys = _list_keys(project, bounded)
    claim(len(keys) == 1, "Valkey has the count of that account", keys)
    _ask_valkey(project, "DEL", *keys)
    claim(bounded.ask().status == 200, "and once it is deleted there, the next is let through")
    with step("killing Valkey"):
        project.compose("kill", "valkey")
    counted = _try_often(bounded)
    good = counted[200] in ADMITTED and counted[200] + counted[429] == TRIES
    claim(good, "without Valkey the gateway counts alone, as declared", counted)
    claim(tenants.eu.ask().status == 200, "and who has no limit notices nothing")
    findings = project.ask_hearth("doctor", is_complaint=True)["findings"]
    found = [f["what"] for f in findings if (f["area"], f["level"]) == ("limits", "problem")]
    claim(len(found) == 1, f"hearth doctor says: {found[0] if found else ''}", findings)
    with step("starting Valkey again"):
        project.start()
    back = poll(lambda: bool(bounded.ask()) and len(_list_keys(project, bounded)) == 1, 30)
    claim(back, "limits are counted in Valkey again, without a restart")


def check_second_gateway(project: ComposeProject, tenants: Tenants) -> None:
    """Starts a second gateway beside the first: they count as one."""
    with step("starting a second gateway"):
        project.start(TWO_GATEWAYS_FILES)
    ports = (project.ports["GATEWAY_PORT"], project.ports["GATEWAY_2_PORT"])
    everyone = [replace(tenants.anywhere, port=port) for port in ports]
    for region in ("weur", "enam"):
        answered = poll(lambda r=region: _all_serve(everyone, r), 60)
        claim(answered, f"both gateways are answered by {region}")
    bounded = _create_bounded(project, "bounded twice")
    counted = _try_often(*(replace(bounded, port=port) for port in ports))
    good = counted[200] in ADMITTED and counted[200] + counted[429] == TRIES
    claim(good, f"of {TRIES} requests, half of them to each, {PER_MIN} are let through", counted)
    credential = project.read_secret("standby_credential")
    admin = project.ports["ADMIN_2_PORT"]
    shown = read_operators_port(admin, credential, "placement")
    claim(shown.status == 200, "hot standby is known to the second one, too", shown)


def _create_bounded(project: ComposeProject, name: str) -> Tenant:
    """An account that may ask a few times a minute."""
    tenant = create_tenant(project, name)
    project.ask_hearth("limits", "set", tenant.account_id, f"--requests-per-min={PER_MIN}")
    time.sleep(SEEN_S)
    return tenant


def _try_often(*tenants: Tenant) -> Counter[int]:
    """How often each status came, when asked in turns."""
    return Counter(tenants[index % len(tenants)].ask().status for index in range(TRIES))


def _all_serve(tenants: list[Tenant], region: str) -> bool:
    """True when each is answered there."""
    return all(tenant.ask(x_hearth_regions=region).region == region for tenant in tenants)


def _list_keys(project: ComposeProject, tenant: Tenant) -> list[str]:
    """What Valkey has of requests of this account."""
    pattern = "{hearth:limits}:r:" + tenant.account_id + "*"
    return _ask_valkey(project, "--scan", "--pattern", pattern).split()


def _ask_valkey(project: ComposeProject, *words: str) -> str:
    """What Valkey answers the gateway's own user."""
    url = project.read_secret("valkey_url").replace("@valkey:", "@127.0.0.1:")
    return project.compose(
        "exec", "-T", "valkey", "valkey-cli", "--no-auth-warning", "-u", url, *words
    )
