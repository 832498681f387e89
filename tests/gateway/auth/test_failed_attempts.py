"""Wrong credentials are counted per address, in a bounded table, and cost good ones nothing."""

import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from contracts.errors import RateLimited
from gateway.auth import failed_attempts
from gateway.auth.failed_attempts import WINDOW_S, FailedAttempts
from gateway.settings import AuthSettings
from gateway.sources import Sources
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode

pytestmark = pytest.mark.timeout(60)


class World:
    """A table that allows three, and its clock."""

    def __init__(self, max_failures: int | None = 3) -> None:
        self.now_s = 100.0
        sources = Sources(lambda: self.now_s, time.time, lambda _: 0)
        settings = AuthSettings(max_failures_per_address_per_min=max_failures)
        self.failures = FailedAttempts(settings, sources)

    def fail(self, address: str, times: int = 1) -> None:
        for _ in range(times):
            self.check(address)
            self.failures.count(ip_address(address))

    def check(self, address: str) -> None:
        self.failures.check(ip_address(address))


def test_too_many_are_refused_until_the_minute_is_over() -> None:
    world = World()
    world.fail("10.0.0.1", 3)
    with pytest.raises(RateLimited) as caught:
        world.check("10.0.0.1")
    assert caught.value.retry_after_s == WINDOW_S
    world.check("10.0.0.2")  # nobody else is
    world.now_s += WINDOW_S
    world.fail("10.0.0.1", 3)


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    world = World()
    for number in range(3):
        world.fail(f"2001:db8:0:1::{number}")
    with pytest.raises(RateLimited):
        world.check("2001:db8:0:1:ffff::9")
    world.check("2001:db8:0:2::1")  # the control: the next network


def test_the_table_stays_small_however_many_addresses_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failed_attempts, "MAX_ADDRESSES", 10)
    world = World()
    for number in range(100):
        world.fail(f"10.0.0.{number}")
    assert world.failures.num_addresses == 10


def test_none_counts_nothing() -> None:
    world = World(None)
    world.fail("10.0.0.1", 100)
    assert world.failures.num_addresses == 0


async def test_a_client_that_guesses_gets_429_and_known_tokens_beside_it_go_on(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    auth = {"max_failures_per_address_per_min": 3}
    async with run_gateway(tmp_path, database_template, [node], auth=auth) as gateway:
        assert (await gateway.run({"prompt": "Hi"})).status == 200
        for number in range(3):
            assert (await _guess(gateway, number)) == 401
        assert (await _guess(gateway, 4)) == 429
        refused = await gateway.send("GET", "/client/v4/user/tokens/verify", api_token="hearth_x")
        assert (refused.status, refused.code) == (429, 7429)
        assert 1 <= int(refused.headers["retry-after"]) <= WINDOW_S
        assert (await gateway.run({"prompt": "Hi"})).status == 200  # known: not asked about
        await gateway.add_tenant()  # moves the epoch: everybody has to be looked up again
        gateway.gateway._cache._forget()
        assert (await gateway.run({"prompt": "Hi"})).status == 200  # was good before
        stranger = await gateway.run({"prompt": "Hi"}, tenant=gateway.tenants[-1])
        assert stranger.status == 429  # never seen: it could be one more guess


async def _guess(gateway: RunningGateway, number: int) -> int:
    """The status that a made-up credential gets."""
    path = gateway.account_path("/ai/run/@hearth/tests/small")
    reply = await gateway.send("POST", path, b"{}", api_token=f"hearth_pat_{number}")
    return reply.status
