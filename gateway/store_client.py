"""A client of Valkey or Redis as every part of the gateway uses it: patient for so long, and once.

Its library is read when there is a store: gateways without one start sooner. Must not know what is
asked. Read next: `gateway.admission.redis_limiter`, `gateway.membership`.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.asyncio import Redis


def create_redis(url: str, budget_s: float) -> "Redis":
    """A client that connects at first use and never tries again by itself: a call that may have
    been counted must not be counted twice.
    """
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(  # pyright: ignore[reportUnknownMemberType] - its own **kwargs
        url,
        socket_connect_timeout=budget_s,
        socket_timeout=budget_s,
        max_connections=4,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=0,
    )


def raise_if_cancelled() -> None:
    """Raises `CancelledError` when this task was cancelled during a call that ended all the same:
    the client waits by `asyncio.wait_for`, which before Python 3.12 can lose a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
