"""What operators do meanwhile: tokens and limits come and go, models are sent to sleep, pages read.

Owns the order of changes and the faults that are seen at once; must not know the load.
Read next: `benchmarks.soak.traffic`.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.fleet.fleet import Fleet, Tenant
from benchmarks.fleet.processes import FleetError, wait_until
from benchmarks.soak.traffic import Kind, Visit, create_body, send
from contracts.fleet_view import NODES_PATH, PLACEMENT_PATH, RULES_PATH
from tenancy.permissions import PERMISSION_GROUPS, Permission

_READ = (
    NODES_PATH, PLACEMENT_PATH, "/operator/v1/accounts", "/operator/v1/audit",
    "/operator/v1/prices", "/operator/v1/operators",
)  # fmt: skip
_SLEEP_S = 6
_LOOK_S = 0.4


@dataclass
class Changes:
    """One operator's work."""

    fleet: Fleet
    models: tuple[str, ...]
    visits: list[Visit]
    """Where requests are noted, for they are in the ledger."""
    pause_s: float
    may_act: asyncio.Event
    faults: list[str] = field(default_factory=list)
    num_token_changes: int = 0
    num_rules: int = 0

    async def run(self) -> None:
        """All of it for ever."""
        async with asyncio.TaskGroup() as group:
            for work in (self._change_token, self._send_to_sleep, self._read_pages):
                group.create_task(self._repeat(work))

    async def _repeat(self, work: Any) -> None:
        draw = random.Random(work.__name__)
        for number in itertools.count():
            await self.may_act.wait()
            try:
                await work(number, draw)
            except (aiohttp.ClientError, RuntimeError, FleetError) as error:
                self.faults.append(f"{work.__name__}: {type(error).__name__}: {error}")
            await asyncio.sleep(self.pause_s)

    async def _change_token(self, number: int, draw: random.Random) -> None:
        """A token is made, used, limited, rolled and deleted; each holds at both gateways."""
        tenant = self.fleet.tenants[number % len(self.fleet.tenants)]
        path = f"/operator/v1/accounts/{tenant.account_id}"
        gateway = self.fleet.gateways[number % len(self.fleet.gateways)]
        made = await self.fleet.call(gateway, "POST", path + "/tokens", create_token(tenant))
        one = f"{path}/tokens/{made['id']}"
        await self._wait_status(tenant, made["value"], 200, draw)
        limits = {"api_token_id": made["id"], "requests_per_min": 0}
        await self.fleet.call(gateway, "PUT", path + "/quotas", limits)
        await self._wait_status(tenant, made["value"], 429, draw)
        query = f"?api_token_id={made['id']}"
        await self.fleet.call(gateway, "DELETE", path + "/quotas", query=query)
        rolled = await self.fleet.call(gateway, "PUT", one + "/value", {})
        await self._wait_status(tenant, made["value"], 401, draw)
        await self._wait_status(tenant, rolled, 200, draw)
        await self.fleet.call(gateway, "DELETE", one)
        await self._wait_status(tenant, rolled, 401, draw)
        self.num_token_changes += 5

    async def _wait_status(
        self, tenant: Tenant, value: str, status: int, draw: random.Random
    ) -> None:
        """Returns once every gateway answers the credential so."""
        for gateway in self.fleet.gateways:

            async def is_so(gateway: str = gateway) -> bool:
                body = create_body(Kind.WHOLE, draw)
                model = draw.choice(self.models)
                visit = Visit(Kind.WHOLE)
                sending = send(self.fleet, gateway, tenant, model, value, body)
                async with sending as response:
                    visit.status = response.status
                    visit.request_id = response.headers.get("x-request-id", "")
                    visit.has_left = True  # it does not read what it was told
                    visit.has_text = response.status == 200
                    await response.read()
                self.visits.append(visit)
                if response.status != status:
                    await asyncio.sleep(_LOOK_S)
                return response.status == status

            await wait_until(is_so, f"{gateway} to answer {status}")

    async def _send_to_sleep(self, number: int, draw: random.Random) -> None:
        """A model leaves the devices for a while; requests wake it meanwhile or after."""
        model = self.models[number % len(self.models)]
        gateway = draw.choice(self.fleet.gateways)
        # Cores whose weights go to the disk end; those of the other models live all the time.
        tier = "disk" if model == self.models[-1] else draw.choice(("host", "gpu"))
        rule = {"model": model, "tier": tier, "for_s": _SLEEP_S}
        await self.fleet.call(gateway, "PUT", RULES_PATH, rule)
        self.num_rules += 1
        await asyncio.sleep(_SLEEP_S)
        await self.fleet.call(gateway, "DELETE", RULES_PATH, query=f"?model={model}")

    async def _read_pages(self, number: int, draw: random.Random) -> None:
        """What consoles and programs ask for again and again."""
        gateway = draw.choice(self.fleet.gateways)
        await self.fleet.call(gateway, "GET", _READ[number % len(_READ)])


def create_token(tenant: Tenant) -> dict[str, Any]:
    """The form of a token that may use models."""
    groups = [g.group_id for g in PERMISSION_GROUPS if g.permission is Permission.WORKERS_AI_READ]
    resources = {f"com.cloudflare.api.account.{tenant.account_id}": "*"}
    policy = {
        "effect": "allow",
        "permission_groups": [{"id": groups[0]}],
        "resources": resources,
    }
    return {"name": "for a while", "policies": [policy]}
