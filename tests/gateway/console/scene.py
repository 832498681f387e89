"""A small platform with a past: three nodes, four accounts and a month of usage, to be looked at.

All of it is made up. Read next: `tools/console_pictures.py`.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from contracts.fleet import FailedModel, ModelLoad
from contracts.histogram import WAIT_BOUNDS_S
from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, NodeId, RegionId
from contracts.ids import create_request_id as create_id
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from contracts.placement import ModelPlacement, Tier
from contracts.pricing import TokenCounts, TokenRates
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.usage import Outcome, UsageRecord
from contracts.wire import Report
from gateway.console.traffic_history import Sample
from gateway.telemetry import Traffic
from tenancy.permissions import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream

LLAMA = ModelName("@cf/meta/llama-3.1-8b-instruct")
QWEN = ModelName("@cf/qwen/qwen3-0.6b")
TINY = ModelName("@hearth/tiny-chat")
NUM_DAYS = 30
ANSWER = (
    "A prefix cache keeps the keys and values",
    " of prompts that were computed before,",
    " so that the next request with the same beginning",
    " starts where the last one left off.",
)
DAY_MS = 86_400_000


class SceneNode(ScriptedNode):
    """A node with some load."""

    def __init__(self, node_id: str, region: str, *models: ModelName, busy: int = 1) -> None:
        super().__init__(node_id, region)
        self.models = models
        self.busy = busy
        self.failed: tuple[FailedModel, ...] = ()
        self.placements = tuple(
            ModelPlacement(
                name=name,
                tier=Tier.HOST if name == TINY else Tier.GPU,
                weights_bytes=16_060_000_000 if name == LLAMA else 1_190_000_000,
                kv_bytes=4 << 30,
                wake_s=0.31 if name == TINY else 0.0,
            )
            for name in models
        )
        self.script = tell

    def _report(self) -> Report:
        report = super()._report().report
        loads = tuple(self._describe(i, load) for i, load in enumerate(report.loads))
        jurisdiction = "us" if self.region == "enam" else "eu"
        return Report(
            type(report)(
                **{
                    **{name: getattr(report, name) for name in report.__struct_fields__},
                    "loads": loads,
                    "failed": self.failed,
                    "jurisdiction": jurisdiction,
                }
            )
        )

    def _describe(self, index: int, load: ModelLoad) -> ModelLoad:
        values = {name: getattr(load, name) for name in load.__struct_fields__}
        if load.name == TINY:  # asleep in the host's memory
            return ModelLoad(**{**values, "is_ready": False, "num_blocks": 0, "num_free_blocks": 0})
        busy = self.busy * (index + 2)
        return ModelLoad(
            **{
                **values,
                "num_running": busy,
                "num_waiting": max(0, busy - 6),
                "num_blocks": 4096,
                "num_free_blocks": 4096 - 300 * busy,
                "num_queued_tokens": 180 * busy,
                "prefill_tokens_per_s": 5200.0 / (index + 1),
                "decode_tokens_per_s": 940.0 / (index + 1),
            }
        )


async def tell(stream: ScriptedStream) -> None:
    """A sentence, not all at once."""
    await stream.put(Accepted(24, 16))
    for index, text in enumerate(ANSWER):
        await stream.put(Delta(text, (index,)))
        await asyncio.sleep(0.02)
    await stream.put(Finished(FinishReason.STOP, Usage(24, 16, len(ANSWER))))


@asynccontextmanager
async def run_scene(folder: Path, template: Path) -> AsyncGenerator[RunningGateway]:
    """The platform; its first tenant may use every model."""
    async with AsyncExitStack() as stack:
        nodes = [
            SceneNode("weur-gpu-1", "weur", LLAMA, QWEN, busy=3),
            SceneNode("weur-gpu-2", "weur", LLAMA),
            SceneNode("enam-gpu-1", "enam", QWEN, TINY),
        ]
        nodes[2].is_draining = True
        for node in nodes:
            await node.start()
            stack.push_async_callback(node.stop)
        gone = replace_node(SceneNode("enam-gpu-2", "enam", LLAMA))
        running = await stack.enter_async_context(
            run_gateway(folder, template, [*nodes, gone], gateway_id="gateway-weur-1")
        )
        await add_accounts(running)
        yield running


def replace_node(node: SceneNode) -> SceneNode:
    """A node that nobody will ever reach."""
    node.port = 1
    return node


async def add_accounts(gateway: RunningGateway) -> None:
    """Accounts with tokens, limits and a month of usage each."""
    tenancy = gateway.tenancy
    await tenancy.set_price("*", TokenRates(60_000_000, 15_000_000, 280_000_000, 280_000_000))
    names = ("Aster Press", "Birch Analytics", "Cedar Support", "Dune Research")
    for index, name in enumerate(names):
        regions = (RegionId("weur"),) if index == 1 else None
        account = await tenancy.create_account(name, allowed_regions=regions)
        issued = [
            await tenancy.create_api_token(account.account_id, title, rights)
            for title, rights in (
                ("production", frozenset({Permission.WORKERS_AI_READ})),
                ("reports", frozenset({Permission.BILLING_READ})),
            )
        ]
        token_id = issued[0].api_token.api_token_id
        limits = QuotaLimits(
            requests_per_min=600,
            concurrent_streams=32,
            neurons_per_day=400_000 * (index + 1),
            spend_nano_per_month=(index + 1) * 60 * 10**9,
        )
        await tenancy.set_quota(QuotaScope(account.account_id), limits)
        if index < 3:
            await add_usage(tenancy, account.account_id, token_id, index)
        if index == 3:
            await tenancy.set_account_status(account.account_id, "suspended")
    while await tenancy.roll_up_usage():
        pass


async def add_usage(
    tenancy: ActingTenancy, account_id: AccountId, token_id: ApiTokenId, index: int
) -> None:
    """Some requests a day."""
    now_ms = int(time.time() * 1000)
    records = []
    for day in range(NUM_DAYS):
        wave = 1.4 + math.sin(day / 3 + index) + (day % 7 < 5)
        for model, weight in ((LLAMA, 3), (QWEN, 1)):
            begun_ms = now_ms - day * DAY_MS - 60_000 * (index + 1)
            size = int(900_000 * wave * weight / (index + 1))
            records.append(
                UsageRecord(
                    create_id(begun_ms, hash((day, model, index)) & (2**74 - 1)),
                    account_id,
                    token_id,
                    model,
                    NodeId("weur-gpu-1"),
                    RegionId("weur"),
                    GatewayId("gateway-weur-1"),
                    begun_ms + 900,
                    Outcome.COMPLETE,
                    TokenCounts(size, size // 3, size // 5),
                    1,
                    size * 350,
                    size * 32,
                )
            )
    await tenancy.append_usage(records, "gateway-weur-1")


def invent_hour(gateway: RunningGateway) -> None:
    """An hour of samples that nobody has measured."""
    history = gateway.gateway._history  # type: ignore[union-attr]
    newest = history._samples[-1]
    history._samples.clear()
    counts, gained = [0.0] * 5, (0.0,) * 5
    streams = [0.0] * (len(WAIT_BOUNDS_S) + 1)
    for step in range(720, -1, -1):
        pace = 42 + 14 * math.sin(step / 90) + 5 * math.sin(step / 11)
        trouble = 2.5 if 300 < step < 340 else 0.1
        gained = (pace, 0.6, trouble, pace * 240, pace * 95)
        counts = [old + 5 * more for old, more in zip(counts, gained, strict=True)]
        for bucket, share in ((2, 0.1), (3, 0.45), (4, 0.35), (5, 0.1)):
            streams[bucket] += 5 * pace * share
        traffic = Traffic(*(int(count) for count in counts), tuple(int(s) for s in streams))
        ago_s = step * 5
        history._samples.append(Sample(newest.unix_s - ago_s, newest.taken_s - ago_s, traffic))

    def go_on() -> Traffic:
        """The counters go on at their last pace."""
        gone_s = history._sources.monotonic_s() - newest.taken_s
        more = [int(count + gone_s * pace) for count, pace in zip(counts, gained, strict=True)]
        return Traffic(*more, tuple(int(s) for s in streams))

    history._read = go_on
