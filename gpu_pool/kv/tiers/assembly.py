"""Builds the tiers of one model from settings and what its executor says of itself.

A directory that cannot be opened is left out, with one line in the log: what it would have kept is
computed again; a store may come and go. Read next: `tier_store`, `tier_source`, `tier_sink`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_pool.kv.tiers.file_tier import FileTier
from gpu_pool.kv.tiers.host_blocks import describe_blocks, digest_layout
from gpu_pool.kv.tiers.host_tier import HostTier
from gpu_pool.kv.tiers.measured_tier import MeasuredTier
from gpu_pool.kv.tiers.mooncake_client import StoreClient
from gpu_pool.kv.tiers.mooncake_tier import MooncakeTier
from gpu_pool.kv.tiers.settings import FileTierSettings, TierSettings
from gpu_pool.kv.tiers.tier_sink import TierSink
from gpu_pool.kv.tiers.tier_source import TierSource
from gpu_pool.kv.tiers.tier_store import TierStore
from gpu_pool.plan import Executor
from gpu_pool.prefill_cost import PrefillCost


@dataclass(frozen=True, slots=True)
class Tiers:
    """A model's tiers and the two ways between them and the engine."""

    store: TierStore
    source: TierSource
    sink: TierSink


def create_tiers(
    settings: TierSettings,
    model_name: str,
    executor: Executor,
    read_cost: Callable[[], PrefillCost],
    monotonic_s: Callable[[], float],
    wake: Callable[[], None],
) -> Tiers:
    """The tiers that `settings` ask for, as far as they can be had; `store` is to be closed.

    `read_cost` and `wake` as `TierSource` has them.
    """
    host, layout = describe_blocks(executor), digest_layout(executor.info)
    num_staging = max(1, *(group.num_host_blocks for group in executor.info.kv_groups))
    tiers: list[MeasuredTier] = []

    def find_num_pending() -> int:
        # Below another, a tier that is behind leaves room for what the faster one can take.
        return max(1, num_staging // 2) if tiers else num_staging

    if settings.host is not None:
        tiers.append(MeasuredTier("host", HostTier(settings.host), num_staging, monotonic_s))
    if settings.file is not None:
        files = _open_files(settings.file, model_name, layout, monotonic_s)
        if files is not None:
            tiers.append(MeasuredTier("file", files, find_num_pending(), monotonic_s))
    if settings.store is not None:
        remote = MooncakeTier(settings.store, StoreClient(settings.store, wake))
        regions = settings.store.regions
        tiers.append(MeasuredTier("store", remote, find_num_pending(), monotonic_s, regions))
    store = TierStore(tiers)
    source = TierSource(store, host, layout, read_cost, monotonic_s, wake)
    return Tiers(store, source, TierSink(store, host, layout))


def _open_files(
    settings: FileTierSettings, model_name: str, layout: bytes, monotonic_s: Callable[[], float]
) -> FileTier | None:
    """The file tier; None where its directory cannot be used."""
    try:
        return FileTier(settings, model_name, layout, monotonic_s)
    except OSError as error:
        structlog.get_logger().warning(
            "KV is not kept in files", path=str(settings.path), reason=error.strerror
        )
        return None
