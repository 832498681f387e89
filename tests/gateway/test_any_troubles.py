"""Any troubles of nodes, any rules, and rules that change meanwhile: no attempt, opinion, retry,
half an answer or prompt is ever where its account, or its request, does not allow it.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import (
    ContextTooLong,
    InvalidRequest,
    NodeUnreachable,
    PoolSaturated,
    StreamBroken,
    UnsupportedFeature,
)
from contracts.ids import NodeId, RegionId
from contracts.inference import Accepted, Delta
from contracts.kv_transfer import KvHalf
from contracts.node_roles import NodeRole
from contracts.region_rules import ANY_REGION, RegionRules
from tenancy.changes import AccountChange
from tests.gateway.prompt_pair import NUM_PROMPT, answer, compute
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known, go_on
from tests.gateway.test_narrowed_accounts import change
from tests.gateway.test_region_rules import REGIONS

WEUR, EEUR, ENAM = (RegionId(name) for name in ("weur", "eeur", "enam"))
PLACES = (
    ("node-1", WEUR, "eu", NodeRole.MIXED),
    ("node-2", EEUR, "eu", NodeRole.MIXED),
    ("node-3", ENAM, "us", NodeRole.MIXED),
    ("node-4", ENAM, "us", NodeRole.MIXED),
    ("prompts-1", WEUR, "eu", NodeRole.PREFILL),
    ("prompts-2", ENAM, "us", NodeRole.PREFILL),
)
RULES = (
    ANY_REGION,
    RegionRules(allowed_regions=(WEUR, EEUR)),
    RegionRules(allowed_jurisdictions=("us",)),
    RegionRules(allowed_jurisdictions=("eu",), allowed_regions=(EEUR, ENAM)),
    RegionRules(preferred_regions=(ENAM,)),
)
WISHES = (None, None, None, (WEUR,), (EEUR, ENAM), (ENAM,))
FAULT = InvalidRequest("The prompt is empty.", param="prompt")
REFUSALS = (
    PoolSaturated("Full."),
    StreamBroken("The engine died."),
    NodeUnreachable("Nobody is there."),
    UnsupportedFeature("Not here."),
    ContextTooLong("Too long."),
)
LONG = "word " * 3000
NUM_PHASES, NUM_AT_ONCE = 8, 30


@dataclass
class Asked:
    """One request, and what has become of it."""

    tenant: Tenant
    wish: tuple[RegionId, ...] | None
    num_attempts: int = 0
    num_faults: int = 0
    """In which nodes found fault with it."""


def find_index(stream: ScriptedStream) -> int:
    """Which of the requests it is, by its prompt."""
    found = re.search(rb"#(\d+)#", stream.body)
    assert found is not None
    return int(found[1])


class World:
    """A gateway before nodes in any mood, and what reached them."""

    def __init__(self, gateway: RunningGateway, nodes: list[ScriptedNode], seed: int) -> None:
        self.gateway, self.nodes = gateway, nodes
        self.rng = random.Random(seed)
        self.asked: list[Asked] = []
        self.rules: dict[str, list[RegionRules]] = {}
        """By account: all that may hold now."""
        self.moods: dict[NodeId, float] = {}
        """How often nodes find fault."""
        self.astray: list[tuple[int, NodeId]] = []
        for node in nodes:
            node.script = lambda stream, node=node: self.play(node, stream)

    async def play(self, node: ScriptedNode, stream: ScriptedStream) -> None:
        """Whatever a node may do with a request that it has."""
        index = find_index(stream)
        asked = self.asked[index]
        if not self.allows(asked, node):
            self.astray.append((index, node.node_id))
        is_prompt_alone = stream.ticket is not None and stream.ticket.half is KvHalf.PREFILL
        if not is_prompt_alone:
            asked.num_attempts += 1
        if self.rng.random() < self.moods[node.node_id]:
            asked.num_faults += not is_prompt_alone
            await stream.fail(FAULT)
        elif self.rng.random() < 0.3:
            await self.fail_somehow(stream)
        elif is_prompt_alone:
            await compute(stream)
        elif stream.request.resumption is not None:
            await go_on(stream)
        else:
            await answer(stream)

    async def fail_somehow(self, stream: ScriptedStream) -> None:
        """Before it has taken the request, after that, or in the middle of the answer."""
        if stream.ticket is None and self.rng.random() < 0.5:
            await stream.put(Accepted(7, 0))
            if self.rng.random() < 0.5:
                await stream.put(Delta("Hal", (11, 12, 13)))
            await stream.fail(self.rng.choice((StreamBroken("The engine died."), FAULT)))
        else:
            await stream.fail(self.rng.choice(REFUSALS))

    def allows(self, asked: Asked, node: ScriptedNode) -> bool:
        """The law anew, in one breath."""
        region, law = node.region, node.jurisdiction
        return (asked.wish is None or region in asked.wish) and any(
            (rules.allowed_regions is None or region in rules.allowed_regions)
            and (rules.allowed_jurisdictions is None or law in rules.allowed_jurisdictions)
            for rules in self.rules[asked.tenant.account_id]
        )

    async def add(self, rules: RegionRules) -> None:
        """An account with these rules."""
        tenant = await self.gateway.add_tenant(rules=rules)
        self.rules[tenant.account_id] = [rules]

    async def ask(self) -> int:
        """One request of any account."""
        tenant = self.rng.choice(self.gateway.tenants[1:])
        wish = self.rng.choice(WISHES)
        index = len(self.asked)
        self.asked.append(Asked(tenant, wish))
        body: dict[str, Any] = {"prompt": f"#{index}# {self.rng.choice(('Hi', 'Hi', LONG))}"}
        if self.rng.random() < 0.5:
            body["stream"] = True
        reply = await self.gateway.send(
            "POST",
            self.gateway.account_path(f"/ai/run/{MODEL}", tenant),
            to_bytes(body),
            api_token=tenant.api_token,
            headers={} if wish is None else {"x-hearth-regions": ",".join(wish)},
        )
        return reply.status

    async def change_rules(self) -> None:
        """Gives one of the accounts other rules."""
        tenant, rules = self.rng.choice(self.gateway.tenants[1:]), self.rng.choice(RULES)
        self.rules[tenant.account_id].append(rules)
        what = AccountChange(
            allowed_regions=rules.allowed_regions,
            allowed_jurisdictions=rules.allowed_jurisdictions,
            preferred_regions=rules.preferred_regions,
        )
        await change(self.gateway, tenant, what)
        await asyncio.sleep(0.1)  # what had its place by then has come there
        self.rules[tenant.account_id] = [rules]

    async def run_phase(self) -> Counter[int]:
        """Some requests at once, before nodes in other moods than before. Returns statuses."""
        for node in self.nodes:
            self.moods[node.node_id] = self.rng.choice((0.0, 0.1, 1.0))
        running = [asyncio.create_task(self.ask()) for _ in range(NUM_AT_ONCE)]
        await self.change_rules()
        return Counter(await asyncio.gather(*running))


@asynccontextmanager
async def open_world(folder: Path, database_template: Path, seed: int) -> AsyncGenerator[World]:
    """All nodes have reported."""
    async with AsyncExitStack() as stack:
        nodes: list[ScriptedNode] = []
        for name, region, law, role in PLACES:
            node = await stack.enter_async_context(run_node(name, region, law))
            node.role, node.has_transfer = role, True
            node.num_prompt = NUM_PROMPT
            node.num_running = 0 if role is NodeRole.PREFILL else 20  # whom long prompts disturb
            nodes.append(node)
        routing = {"regions": REGIONS, "resume_patience_s": 0.2, "retry_reserve": 10_000}
        gateway = await stack.enter_async_context(
            run_gateway(
                folder,
                database_template,
                nodes,
                routing=routing,
                limits={"queue_deadline_s": 0.3},
                region="weur",
            )
        )
        await wait_until_async(lambda: are_known(gateway, len(nodes)))
        yield World(gateway, nodes, seed)


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_befalls_a_request_it_is_never_where_it_must_not_be(
    tmp_path: Path, database_template: Path, seed: int
) -> None:
    """The control: many were asked of a second node after the first had found fault, and some of
    those found fault as well.
    """
    async with open_world(tmp_path, database_template, seed) as world:
        for rules in RULES:
            await world.add(rules)
        statuses = Counter[int]()
        for _ in range(NUM_PHASES):
            statuses += await world.run_phase()
        assert world.astray == []
        assert statuses[200] > NUM_PHASES
        assert not statuses[500]
        num_answered = sum(one.num_attempts > one.num_faults > 0 for one in world.asked)
        num_agreed = sum(one.num_faults > 1 for one in world.asked)
        assert num_answered > NUM_PHASES
        assert num_agreed > 0
