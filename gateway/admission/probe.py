"""One look at Valkey or Redis from outside: how long it takes to answer, and what time it has.

For whoever sets an installation up. Read next: `redis_limiter`, `cli.doctor.store_checks`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from contracts.errors import StoreUnavailable
from gateway.store_client import create_redis

PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """What was found. Units: seconds."""

    took_s: float
    """One call, once connected."""
    skew_s: float
    """How far its clock is ahead of ours."""


async def probe_store(url: str, unix_s: Callable[[], float]) -> StoreProbe:
    """What the store at `url` is like. Raises: `StoreUnavailable`, which says why."""
    client: Any = create_redis(url, PATIENCE_S)
    try:
        await client.time()
        began_s = time.monotonic()
        seconds, micros = await client.time()
        took_s = time.monotonic() - began_s
        return StoreProbe(took_s, seconds + micros / 1e6 + took_s / 2 - unix_s())
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
    finally:
        await client.aclose()
