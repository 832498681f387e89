"""A storm of canaries through a gateway process and node processes, and what comes to light.

Read next: `canary_requests` (what is asked), `canary_answers` (what is said).
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from migrations.upgrade import upgrade_database
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tests.fixtures import crossed_streams
from tests.fixtures.fleet_node import GATEWAY, FleetNode, create_fleet_node
from tests.fixtures.node_process import fetch_status
from tests.gateway.batch_client import ask_batch, hand_in
from tests.gateway.gateway_process import GatewayProcess, open_tenancy_of, run_processes
from tests.gateway.running_gateway import Reply, RunningGateway, to_bytes, wait_until_async
from tests.gpu_pool.canary_llama import NUM_FILLERS
from tests.integration.canary_answers import (
    Said,
    count_cached_tokens,
    count_output_tokens,
    count_prompt_tokens,
    read_events,
    read_whole,
)
from tests.integration.canary_requests import MODEL, NUM_ACCOUNTS, Canary

GATEWAYS: Final = (GATEWAY, "gateway-2")
_NODE_SETTINGS: Final = """[[models]]
name = "{model}"
path = "{checkpoint}"
[engine]
block_size = 16
kv_bytes = 1048576
swap_bytes = 1048576
max_running = 48
max_chunk_tokens = 50
num_threads = 1
[engine.ngram]
min_match_tokens = 1
[[gateways]]
gateway_id = "{gateway_id}"
key_file = "{key_file}"
"""
"""Memory for 64 blocks, of which 48 answers want 300 and more."""
_POLL_S: Final = 0.5
"""How often a client asks for the answers of its batch."""
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)
"""A client waits for as long as the gateway lets it; aiohttp's own five minutes are less."""
_PATIENCE_S: Final = 400.0
"""How long a request may wait for a place: the more storm, the slower the machine."""


@dataclass(frozen=True)
class Stores:
    """What two gateways have in common."""

    database_url: str
    redis_url: str


@dataclass
class Answer:
    """What came of one request."""

    canary: Canary
    status: int = 0
    """0: the connection broke."""
    request_id: str = ""
    node_id: str = ""
    said: Said = field(default_factory=Said)
    faults: list[str] = field(default_factory=list[str])

    @property
    def is_whole(self) -> bool:
        """True when it says so itself."""
        return self.status == 200 and self.said.is_ended and self.said.error is None

    def check(self) -> None:
        """Notes everything that is not this request's own."""
        canary, said = self.canary, self.said
        allowed = canary.secrets
        for choice in {*said.texts, *said.mentioned, *said.scored}:
            if choice >= len(allowed):
                self.faults.append(f"a choice {choice}")
                continue
            prompt = canary.prompts[choice // canary.num_choices]
            for kind, tokens in (("text", said.texts), ("scores", said.scored)):
                echoed, own = split_echo(canary, prompt, tokens[choice])
                if tuple(echoed) != prompt[: len(echoed)]:
                    self.faults.append(f"leak: another's prompt in the {kind}: {echoed}")
                if foreign := set(own) - allowed[choice]:
                    self.faults.append(f"leak: {foreign} in the {kind} of choice {choice}")
            named = {one for one in said.mentioned[choice] if one >= NUM_FILLERS}
            if foreign := named - allowed[choice]:
                self.faults.append(f"leak: {foreign} beside choice {choice}")
        if said.ids - {self.request_id}:
            self.faults.append(f"leak: ids {said.ids} in the answer to {self.request_id}")
        if self.is_whole:
            self._check_whole()

    def _check_whole(self) -> None:
        """The length of the answer, and its usage."""
        canary, said = self.canary, self.said
        for choice in range(len(canary.secrets)):
            prompt = canary.prompts[choice // canary.num_choices]
            wanted = canary.num_each + len(prompt) * canary.echoes
            if len(said.texts[choice]) != wanted:
                self.faults.append(f"{len(said.texts[choice])} tokens of {wanted}")
        if said.usage is None:
            self.faults.append("no usage")
            return
        counted = count_prompt_tokens(said.usage), count_output_tokens(said.usage)
        if counted != (canary.num_prompt_tokens, canary.num_output_tokens):
            self.faults.append(f"usage: {said.usage}")


def split_echo(
    canary: Canary, prompt: tuple[int, ...], tokens: list[int]
) -> tuple[list[int], list[int]]:
    """What is repeated of the prompt, and what was generated."""
    num_echoed = len(prompt) if canary.echoes else 0
    return tokens[:num_echoed], tokens[num_echoed:]


@dataclass
class Findings:
    """What a storm has brought to light."""

    answers: list[Answer]

    @property
    def leaks(self) -> list[tuple[Canary, list[str]]]:
        """Answers that hold what is another's."""
        return [(canary, told) for canary, told in self.faults if "leak" in " ".join(told)]

    @property
    def faults(self) -> list[tuple[Canary, list[str]]]:
        """Answers with anything that is not as it should be."""
        return [(one.canary, one.faults) for one in self.answers if one.faults]

    @property
    def num_whole(self) -> int:
        """Answers of full length."""
        return sum(one.is_whole for one in self.answers)

    @property
    def num_left(self) -> int:
        """Whose clients hung up in mid-stream."""
        return sum(one.canary.patience is not None and not one.is_whole for one in self.answers)

    @property
    def num_cached(self) -> int:
        """Prompt tokens that were found."""
        usages = [one.said.usage for one in self.answers if one.is_whole]
        return sum(count_cached_tokens(usage) for usage in usages if usage)


@dataclass(frozen=True)
class Batch:
    """One that was handed in."""

    items: Sequence[Canary]
    request_id: str


@dataclass
class Fleet:
    """Gateways before nodes, and an account for each number."""

    gateways: list[RunningGateway]
    nodes: list[FleetNode]
    num_answered: int = 0

    def choose_gateway(self, canary: Canary) -> RunningGateway:
        """Whom a request is sent to: accounts use all of them."""
        return self.gateways[(canary.number // NUM_ACCOUNTS) % len(self.gateways)]

    async def play(self, canaries: Iterable[Canary], num_clients: int) -> Findings:
        """All answers; so many are asked for at once."""
        waiting = iter(canaries)
        answers: list[Answer] = []

        async def work() -> None:
            for canary in waiting:
                answer = await self.ask(canary)
                answer.check()
                answers.append(answer)

        await asyncio.gather(*(work() for _ in range(num_clients)))
        return Findings(answers)

    async def ask(self, canary: Canary) -> Answer:
        """The answer to one request, or what its client has waited for."""
        gateway = self.choose_gateway(canary)
        tenant = gateway.tenants[canary.account]
        url = gateway.base + gateway.account_path(canary.path, tenant)
        headers = {"authorization": f"Bearer {tenant.api_token}", **canary.headers}
        answer = Answer(canary)
        request = gateway.session.post(
            url, data=to_bytes(canary.body), headers=headers, timeout=_NO_TIMEOUT
        )
        try:
            async with request as response:
                answer.status = response.status
                answer.request_id = response.headers.get("x-request-id", "")
                answer.node_id = response.headers.get("x-hearth-node", "")
                await read(answer, response)
        except aiohttp.ClientError as error:
            answer.said.error = repr(error)
        self.num_answered += 1
        return answer

    async def hand_in(self, items: Sequence[Canary]) -> Batch:
        """The requests of one batch."""
        gateway, bodies = self.gateways[0], [item.body for item in items]
        reply = await hand_in(
            gateway, *bodies, tenant=gateway.tenants[items[0].account], model=MODEL
        )
        assert reply.status == 200, reply.body
        return Batch(items, reply.json["result"]["request_id"])

    async def fetch(self, batch: Batch) -> Findings:
        """Its answers, once there are any."""
        items, gateway = batch.items, self.gateways[-1]
        tenant = self.gateways[0].tenants[items[0].account]
        question = {"request_id": batch.request_id}
        responses: list[dict[str, Any]] = []
        while not responses:
            await asyncio.sleep(_POLL_S)
            reply = await ask_batch(gateway, question, tenant=tenant, model=MODEL)
            if reply.status == 200:  # a client asks again where it is told to
                responses = reply.json["result"].get("responses", [])
        answers = [Answer(item, 200) for item in items]
        for answer, response in zip(answers, responses, strict=True):
            if response["external_reference"] != answer.canary.body["external_reference"]:
                answer.faults.append(f"leak: {response['external_reference']}")
            if response["success"]:
                answer.said.add(response["result"])
                answer.said.is_ended = True
            answer.check()
        return Findings(answers)

    async def are_ready(self, count: int) -> bool:
        """True when every gateway knows so many nodes that can serve."""
        for gateway in self.gateways:
            seen = await list_nodes(gateway)
            loads = [one["loads"] for one in seen if one["is_connected"] and not one["is_draining"]]
            if sum(any(load["is_ready"] for load in each) for each in loads) < count:
                return False
        return True

    async def read_load(self, node_id: str) -> dict[str, Any]:
        """What a node has told last of its model; nothing before it has told any."""
        seen = await list_nodes(self.gateways[0])
        (loads,) = [one["loads"] for one in seen if one["node_id"] == node_id]
        return loads[0] if loads else {}

    async def read_counter(self, name: str) -> float:
        """A figure of all gateways together."""
        pattern = re.compile(rf"^hearth_gateway_{name}_total (\S+)$", re.MULTILINE)
        texts = [(await ask_operator(one, "/metrics")).body.decode() for one in self.gateways]
        return sum(float(found) for text in texts for found in pattern.findall(text))

    def list_resumed(self) -> set[str]:
        """Requests of whose answers a part had come when they went on at another node. To be asked
        when all is over.
        """
        lines = [json.loads(one) for each in self.gateways for one in read_log(each).splitlines()]
        resumed = [one for one in lines if one["event"] == "answer_resumed"]
        return {one["request_id"] for one in resumed if one["num_tokens"]}


def read_log(gateway: RunningGateway) -> bytes:
    """The log of a gateway process that has ended."""
    process: Any = gateway.gateway
    assert isinstance(process, GatewayProcess)
    return process.log


async def list_nodes(gateway: RunningGateway) -> list[dict[str, Any]]:
    """What a gateway knows of nodes."""
    return (await ask_operator(gateway, "/operator/v1/nodes")).json["result"]


async def ask_operator(gateway: RunningGateway, path: str) -> Reply:
    """What operators are told."""
    return await gateway.send("GET", path, api_token=gateway.operator, origin=gateway.admin)


async def read(answer: Answer, response: aiohttp.ClientResponse) -> None:
    """Takes in what comes, until the client has had enough."""
    if not response.content_type.startswith("text/event-stream"):
        answer.said = read_whole(await response.read())
        return
    body, patience = b"", answer.canary.patience
    try:
        async for piece in response.content.iter_any():
            body += piece
            if patience is not None and body.count(b"\n\n") >= patience:
                response.close()
                break
    finally:
        answer.said = read_events(body)


@asynccontextmanager
async def run_fleet(
    folder: Path, checkpoint: Path, stores: Stores | None = None, defect: str | None = None
) -> AsyncGenerator[Fleet]:
    """Gateway processes before nodes, all of them ready, with an account for each number: two and
    two on common stores, one and one without any; with a defect in all of them if one is named.
    """
    num_each = 1 if stores is None else 2
    url = f"sqlite+aiosqlite:///{folder / 'hearth.db'}" if stores is None else stores.database_url
    await asyncio.to_thread(upgrade_database, url)
    nodes = [create_node(folder, f"node-{n}", checkpoint, defect) for n in range(num_each)]
    processes = [create_gateway(folder, name, url, nodes, stores) for name in GATEWAYS[:num_each]]
    if defect is not None:
        for process in processes:
            process.program = (crossed_streams.NAME, defect, "gateway")
    tenancy = open_tenancy_of(folder, url)
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.start()
            stack.callback(node.reap)
        await wait_until_async(lambda: are_up(nodes), timeout_s=120)
        gateways = await stack.enter_async_context(run_processes(processes, tenancy))
        while len(gateways[0].tenants) < NUM_ACCOUNTS:
            await gateways[0].add_tenant()
        operator = (await tenancy.create_operator("tests")).value.reveal()
        for gateway in gateways:
            gateway.tenants, gateway.operator = gateways[0].tenants, operator
        fleet = Fleet(gateways, nodes)
        await wait_until_async(lambda: fleet.are_ready(num_each), timeout_s=120)
        yield fleet


def create_node(folder: Path, name: str, checkpoint: Path, defect: str | None) -> FleetNode:
    """A node that is not started; every gateway has a key of its own there, which is the same."""
    key_file = folder / name / "gateway.key"
    settings = _NODE_SETTINGS.format(
        model=MODEL, checkpoint=checkpoint, gateway_id=GATEWAYS[1], key_file=key_file
    )
    program = ("cli", "node") if defect is None else (crossed_streams.NAME, defect, "node")
    return create_fleet_node(folder, name, program, settings)


def create_gateway(
    folder: Path, name: str, url: str, nodes: list[FleetNode], stores: Stores | None
) -> GatewayProcess:
    """A gateway that is not started, with a folder of its own beside the common key ring."""
    own = folder / name
    own.mkdir()
    load_or_create_key_ring(folder / "key_ring.json", secrets.token_bytes)
    sections: dict[str, Any] = {
        "gateway_id": name,
        "key_ring": {"file": str(folder / "key_ring.json")},
        "routing": {"silence_s": 5.0, "resume_patience_s": 60.0},
        "queue": {"max_requests": 1024, "max_wait_s": _PATIENCE_S},
        "limits": {"queue_deadline_s": _PATIENCE_S},
        "batches": {"poll_s": 0.2},
    }
    if stores is not None:
        sections["shared_limits"] = {"url": stores.redis_url, "budget_s": 10.0}
    return GatewayProcess(own, url, nodes, **sections)


async def are_up(nodes: list[FleetNode]) -> bool:
    """True when all say that they can serve."""
    urls = [node.url.replace("ws", "http", 1) + "/health/ready" for node in nodes]
    statuses = await asyncio.gather(*(asyncio.to_thread(fetch_status, url) for url in urls))
    return statuses == [200] * len(nodes)
