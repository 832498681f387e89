"""What one account asks at once waits for its own turn, and nobody else for it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import pytest

from contracts.errors import ConcurrencyLimited
from contracts.ids import AccountId
from gateway.api.turns import AT_ONCE, MAX_WAITING, Turns
from tests.gateway.cloudflare_client import ALL
from tests.gateway.running_gateway import RunningGateway, Tenant, wait_until_async

ONE, OTHER = AccountId("a" * 32), AccountId("b" * 32)


class Crowd:
    """Requests that stay until they are let go."""

    def __init__(self, turns: Turns, account_id: AccountId) -> None:
        self._turns = turns
        self._account_id = account_id
        self.gone = asyncio.Event()
        self.order: list[int] = []

    async def ask(self, number: int) -> None:
        """Stays until all are let go."""
        async with self._turns.take(self._account_id):
            self.order.append(number)
            await self.gone.wait()


async def settle() -> None:
    """Lets every task run as far as it gets."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_few_at_once_in_order_and_others_at_their_side() -> None:
    turns = Turns()
    crowd = Crowd(turns, ONE)
    tasks = [asyncio.create_task(crowd.ask(n)) for n in range(AT_ONCE + 3)]
    await settle()
    assert crowd.order == list(range(AT_ONCE))
    async with asyncio.timeout(1), turns.take(OTHER):
        assert turns.num_accounts == 2
    crowd.gone.set()
    await asyncio.gather(*tasks)
    assert crowd.order == list(range(AT_ONCE + 3))
    assert turns.num_accounts == 0


async def test_more_than_may_wait_are_refused_at_once() -> None:
    turns = Turns()
    crowd = Crowd(turns, ONE)
    tasks = [asyncio.create_task(crowd.ask(n)) for n in range(AT_ONCE + MAX_WAITING)]
    await settle()
    with pytest.raises(ConcurrencyLimited, match="Send fewer") as refused:
        await crowd.ask(-1)
    assert refused.value.retry_after_s == 1
    for task in tasks[::2]:  # who leaves, served or waiting, makes room
        task.cancel()
    await settle()
    joined = asyncio.create_task(crowd.ask(-2))
    await settle()
    crowd.gone.set()
    await joined
    await asyncio.gather(*tasks, return_exceptions=True)
    assert turns.num_accounts == 0


async def test_who_has_waited_too_long_is_refused() -> None:
    turns = Turns(patience_s=0.01)
    crowd = Crowd(turns, ONE)
    tasks = [asyncio.create_task(crowd.ask(n)) for n in range(AT_ONCE)]
    await settle()
    with pytest.raises(ConcurrencyLimited):
        await crowd.ask(-1)
    crowd.gone.set()
    await asyncio.gather(*tasks)
    assert turns.num_accounts == 0


async def test_one_account_s_slow_requests_hold_up_nobody_else(gateway: RunningGateway) -> None:
    """Its own next page waits for its bodies to come; another account's page does not."""
    slow, other = await gateway.add_tenant(permissions=ALL), await gateway.add_tenant()
    has_come = asyncio.Event()

    async def trickle() -> AsyncGenerator[bytes]:
        yield b'{"name":'
        await has_come.wait()
        yield b'"made"}'

    async def make() -> int:
        headers = {"authorization": f"Bearer {slow.api_token}", "content-type": "application/json"}
        url = gateway.base + gateway.account_path("/tokens", slow)
        async with gateway.session.post(url, data=trickle(), headers=headers) as response:
            return response.status

    async def verify(tenant: Tenant, patience_s: float) -> int:
        path = gateway.account_path("/tokens/verify", tenant)
        asked = gateway.send("GET", path, api_token=tenant.api_token)
        return (await asyncio.wait_for(asked, patience_s)).status

    async def is_held_up(asked: Awaitable[int]) -> bool:
        try:
            assert await asked == 200
        except TimeoutError:
            return True
        return False

    many = [asyncio.create_task(make()) for _ in range(AT_ONCE)]
    await wait_until_async(lambda: is_held_up(verify(slow, 1.0)), 60.0)
    assert await verify(other, 10.0) == 200
    own = asyncio.create_task(verify(slow, 10.0))
    has_come.set()
    assert set(await asyncio.gather(*many)) == {400}  # without policies it makes nothing
    assert await own == 200
