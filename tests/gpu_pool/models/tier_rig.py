"""A real model under the real scheduler with tiers beside it, step by step."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.passage import Carriers
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.tiers.assembly import Tiers, create_tiers
from gpu_pool.kv.tiers.host_blocks import digest_layout
from gpu_pool.kv.tiers.measured_tier import TierFigures
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.settings import FileTierSettings, HostTierSettings, TierSettings
from gpu_pool.kv.tiers.tier_store import WantedBlock
from gpu_pool.node_clock import read_node_ms
from gpu_pool.prefill_cost import PrefillCost
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, Outcome, assert_no_leak

_PATIENCE_S = 60.0


class TierRig(EngineRig):
    """An engine with tiers; what its device forgets can come back."""

    tiers: Tiers

    def __init__(self, folder: Path, settings: TierSettings, num_blocks: int = 400) -> None:
        executor = create_executor(
            WorkerSettings(
                model_dir=folder,
                num_blocks=num_blocks,
                num_threads=1,
                staging_tokens=settings.staging_tokens,
            )
        )
        self.num_groups = len(executor.info.kv_groups)
        self.news = threading.Event()
        self.tokens_per_s = 1.0
        """The speed of prefill that the tiers are told: so slow that every fetch is worth it."""

        def create_carriers(_: object) -> Carriers:
            self.tiers = create_tiers(
                settings,
                "model",
                executor,
                lambda: PrefillCost(1 / self.tokens_per_s),
                time.monotonic,
                self.news.set,
            )
            return Carriers((self.tiers.source,), (self.tiers.sink,))

        super().__init__(
            SchedulerSettings(max_batch_tokens=512, max_chunk_tokens=128),
            executor.info,
            create_carriers=create_carriers,
        )
        self.executor = executor  # type: ignore[assignment]

    def answer(self, request: AddSequence) -> Outcome:
        """Computes a request to its end, and waits until the tiers have what they are to keep."""
        outcome = self.add(request)
        self.settle()
        return outcome

    def settle(self) -> None:
        """Steps until nothing is computed, fetched or kept any more."""
        while self.scheduler.num_sequences or self.scheduler.has_work:
            self.now_ms = read_node_ms()
            self.step()
            if not self.scheduler.has_work and self.scheduler.num_sequences:
                assert self.news.wait(_PATIENCE_S), "a fetch does not come to an end"
                self.news.clear()
        deadline_s = time.monotonic() + _PATIENCE_S
        while any(self.scheduler.books.passage.count_held(p) for p in range(self.num_groups)):
            assert time.monotonic() < deadline_s, "the tiers do not let go"
            self.step()

    def forget(self) -> None:
        """The device loses all it has, as in a sleep."""
        self.settle()
        self.scheduler.forget_prefixes()

    def list_rows(self, request: AddSequence) -> tuple[TierNamespace, list[list[WantedBlock]]]:
        """The blocks of a prompt as its account's tiers know them."""
        info = self.executor.info
        hasher = BlockHasher(info.model_revision, info.kv_dtype, info.block_size)
        root_key = parent = hasher.create_root(request.cache_salt)
        space = TierNamespace(request.account_id, root_key, digest_layout(info))
        num_bytes = info.kv_groups[0].block_bytes
        rows: list[list[WantedBlock]] = []
        for start in range(0, len(request.token_ids) - info.block_size, info.block_size):
            parent = hasher.extend(parent, request.token_ids[start : start + info.block_size])
            rows.append([WantedBlock(space.name_block(0, parent), num_bytes)])
        return space, rows

    def read_kept(self, request: AddSequence) -> list[bytes]:
        """The plain KV of a prompt's full blocks, as the tiers give it to whoever has the salt."""
        space, rows = self.list_rows(request)
        blocks = [bytearray(row[0].num_bytes) for row in rows]
        targets = [[memoryview(block)] for block in blocks]
        is_over = threading.Event()
        fetch = self.tiers.store.fetch(space, rows, targets, lambda _: False, is_over.set)
        assert is_over.wait(_PATIENCE_S)
        return [bytes(block) for block in blocks[: fetch.num_landed]]

    def await_rate(self, label: str) -> None:
        """Waits until a tier's reads have been measured: the first is one that nobody waits for."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self.figure(label).bytes_per_s:
            assert time.monotonic() < deadline_s, "nothing is read for the sake of the rate"
            time.sleep(0.001)

    def figure(self, label: str) -> TierFigures:
        """What one tier came to."""
        return next(tier for tier in self.tiers.store.describe() if tier.label == label)


def create_settings(
    path: Path | None, *, has_host: bool = False, staging_tokens: int = 1024
) -> TierSettings:
    """Tiers with room for all that a test computes."""
    return TierSettings(
        host=HostTierSettings(max_bytes=1 << 30) if has_host else None,
        file=None if path is None else FileTierSettings(path=path, max_bytes=1 << 30),
        staging_tokens=staging_tokens,
    )


@contextmanager
def open_rig(folder: Path, settings: TierSettings, num_blocks: int = 400) -> Iterator[TierRig]:
    """A rig; nothing of it may have leaked in the end."""
    rig = TierRig(folder, settings, num_blocks)
    try:
        yield rig
        assert_no_leak(rig)
    finally:
        rig.tiers.store.close()
