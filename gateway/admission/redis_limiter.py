"""Rates and leases in Valkey or Redis, for several gateway processes that count together.

Owns the batches: whatever has to be asked or told while a call is under way goes out with the next
one, so that a busy gateway pays one round trip for many requests. A call has a budget of time;
after several failures the breaker opens and the declared degraded mode applies until a probe
succeeds.
What was only told (corrections, releases) is told once: a lost one errs on the careful side and
fades within a minute or a lease. Read next: `reserve.lua`, `gateway.admission.breaker`.
"""

import asyncio
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from contracts.errors import StoreUnavailable
from contracts.quotas import Quota
from gateway.admission.breaker import Breaker
from gateway.admission.degraded_limiter import DegradedLimiter
from gateway.admission.limiter import DIMENSIONS, RateNeed, RateState
from gateway.admission.refusals import create_refusal
from gateway.store_client import raise_if_cancelled

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger(__name__)
MAX_BATCH: Final = 256
MAX_TOLD: Final = 100_000
"""Corrections and releases that may wait; the oldest of more are lost, as they are in a failure."""
_PREFIX: Final = "{hearth:limits}:"
_NO_LIMIT: Final = -1

_Command = list[Any]


class RedisLimiter:
    """`Limiter` of several processes."""

    def __init__(
        self,
        redis: "Redis",
        *,
        lease_ms: int,
        budget_s: float,
        breaker: Breaker,
        degraded: DegradedLimiter,
    ) -> None:
        """`budget_s` is what one call may take. `degraded` decides while the store is away."""
        self._script = redis.register_script(_read_script())
        self._redis = redis
        self._lease_ms = lease_ms
        self._budget_s = budget_s
        self._breaker = breaker
        self._degraded = degraded
        self._asked: list[tuple[_Command, asyncio.Future[list[int]]]] = []
        self._told: list[_Command] = []
        self._call: asyncio.Task[None] | None = None

    @property
    def is_degraded(self) -> bool:
        """True from several failures in a row until a probe succeeds."""
        return not self._breaker.is_closed()

    async def reserve(self, need: RateNeed) -> RateState | None:
        """Reserves on every scope, all or none.

        Raises: `LimitError` leaves; `StoreUnavailable` where the degraded mode refuses.
        """
        if not any(_is_limited(quota) for quota in need.quotas):
            return None
        if not self._breaker.is_closed():
            return await self._degraded.reserve(need)
        scopes = [[to_scope_name(quota), *_list_limits(quota)] for quota in need.quotas]
        command = ["reserve", need.reservation_id, self._lease_ms, need.num_tokens, scopes]
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._asked.append((command, answer))
        self._start_call()
        try:
            answered = await answer
        except StoreUnavailable:
            # It may have been counted all the same: its lease is given back, the rest fades.
            self.release(need)
            return await self._degraded.reserve(need)
        except BaseException:
            self.release(need)
            raise
        return _read_answer(answered, need)

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds `num_tokens`, which may be negative, to what the request's scopes have used."""
        if self._degraded.holds(need):
            self._degraded.correct(need, num_tokens)
            return
        scopes = [
            [to_scope_name(quota), quota.limits.tokens_per_min]
            for quota in need.quotas
            if quota.limits.tokens_per_min is not None
        ]
        if scopes:
            self._tell(["correct", num_tokens, scopes])

    def release(self, need: RateNeed) -> None:
        """Ends the request's leases. Idempotent."""
        self._degraded.release(need)
        scopes = _list_lease_scopes(need)
        if scopes:
            self._tell(["release", need.reservation_id, scopes])

    async def renew(self, needs: Sequence[RateNeed]) -> None:
        """Keeps the leases of requests that are still being served, even those that had ended."""
        await self._degraded.renew([need for need in needs if self._degraded.holds(need)])
        for need in needs:
            scopes = _list_lease_scopes(need)
            if scopes and not self._degraded.holds(need):
                self._tell(["renew", need.reservation_id, self._lease_ms, scopes])

    async def flush(self) -> None:
        """Returns once all that was corrected and released is counted, as far as that can be."""
        while self._call is not None:
            await asyncio.wait([self._call])

    async def run(self) -> None:
        """Probes a store that has failed, for ever, so that no request has to."""
        while True:
            await self._breaker.wait_for_probe()
            try:
                async with asyncio.timeout(self._budget_s):
                    await self._script(keys=[_PREFIX], args=[_pack([])])
            except Exception as error:  # of any kind, as below
                self._breaker.record_failure()
                log.warning("limits_unreachable", error=type(error).__name__)
            else:
                self._breaker.record_success()
                log.info("limits_reachable_again")
            raise_if_cancelled()

    async def close(self) -> None:
        """Tells what is left and lets go of connections."""
        await self.flush()
        await self._redis.aclose()

    def _tell(self, command: _Command) -> None:
        """Sends `command` with the next call."""
        self._told.append(command)
        if len(self._told) > MAX_TOLD:
            del self._told[: MAX_TOLD // 2]
        self._start_call()

    def _start_call(self) -> None:
        """Starts the next call unless one is under way, which starts it when it ends."""
        if self._call is None and self._breaker.is_closed():
            self._call = asyncio.create_task(self._run_calls())

    async def _run_calls(self) -> None:
        """Calls until nothing waits."""
        try:
            while (self._asked or self._told) and self._breaker.is_closed():
                asked, self._asked = self._asked[:MAX_BATCH], self._asked[MAX_BATCH:]
                told, self._told = self._told[:MAX_BATCH], self._told[MAX_BATCH:]
                await self._call_once(asked, told)
        finally:
            self._call = None
            for _, answer in self._asked:
                _fail(answer)
            self._asked.clear()

    async def _call_once(
        self, asked: list[tuple[_Command, asyncio.Future[list[int]]]], told: list[_Command]
    ) -> None:
        """One call; what was told comes first, so that freed places can be taken."""
        # Who has gone meanwhile was released, by what is told before: it must not be asked for.
        asked = [(command, answer) for command, answer in asked if not answer.done()]
        commands = [*told, *(command for command, _ in asked)]
        try:
            async with asyncio.timeout(self._budget_s):
                packed: bytes = await self._script(keys=[_PREFIX], args=[_pack(commands)])
            answers = msgspec.msgpack.decode(packed, type=list[list[int]])
            answered_all = tuple(zip(asked, answers, strict=True))
            for (command, _), answered in answered_all:
                _check_answer(command, answered)
        except Exception as error:  # what answers need not speak the protocol
            log.warning("limits_call_failed", error=type(error).__name__)
            self._breaker.record_failure()
            for _, answer in asked:
                _fail(answer)
            return
        self._breaker.record_success()
        for (_, answer), answered in answered_all:
            if not answer.done():
                answer.set_result(answered)


def to_scope_name(quota: Quota) -> str:
    """A scope as part of a key."""
    scope = quota.scope
    return f"{scope.account_id}:{scope.api_token_id or ''}:{scope.model or ''}"


def _read_script() -> str:
    return resources.files("gateway.admission").joinpath("reserve.lua").read_text(encoding="utf-8")


def _pack(commands: list[_Command]) -> bytes:
    return msgspec.msgpack.encode(commands)


def _is_limited(quota: Quota) -> bool:
    limits = quota.limits
    return not (
        limits.requests_per_min is None
        and limits.tokens_per_min is None
        and limits.concurrent_streams is None
    )


def _list_limits(quota: Quota) -> list[int]:
    """Requests, tokens and streams; -1 where there is no limit."""
    limits = quota.limits
    each = (limits.requests_per_min, limits.tokens_per_min, limits.concurrent_streams)
    return [_NO_LIMIT if limit is None else limit for limit in each]


def _list_lease_scopes(need: RateNeed) -> list[str]:
    """Names of the scopes in which a request holds a lease."""
    return [
        to_scope_name(quota) for quota in need.quotas if quota.limits.concurrent_streams is not None
    ]


def _check_answer(command: _Command, answered: list[int]) -> None:
    """Raises `ValueError` for what `reserve.lua` never says of this reservation."""
    is_granted = len(answered) == 4 and answered[0] == 0
    if not is_granted:
        index, dimension, _wait_ms = answered
        num_scopes = len(command[-1])
        if not (1 <= index <= num_scopes and 1 <= dimension <= len(DIMENSIONS)):
            raise ValueError("There is no such limit.")


def _read_answer(answered: list[int], need: RateNeed) -> RateState | None:
    """What the script says of one reservation. Raises: `LimitError` leaves."""
    if answered[0] == 0:
        _, limit, num_left, reset_s = answered
        return None if limit == _NO_LIMIT else RateState(limit, num_left, reset_s)
    index, dimension, wait_ms = answered
    quota, name = need.quotas[index - 1], DIMENSIONS[dimension - 1]
    limit = _list_limits(quota)[dimension - 1]
    raise create_refusal(name, quota.scope, limit, None if wait_ms < 0 else wait_ms)


def _fail(answer: "asyncio.Future[list[int]]") -> None:
    """Ends a wait for an answer that will not come."""
    if not answer.done():
        answer.set_exception(
            StoreUnavailable("Limits cannot be checked right now.", retry_after_s=1)
        )
