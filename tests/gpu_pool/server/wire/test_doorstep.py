"""Connections that prove nothing hold no place for long, and never keep a gateway out."""

import asyncio
import contextlib

import pytest

from contracts.errors import Unauthenticated
from gpu_pool.server.wire.doorstep import Doorstep


async def loiter(doorstep: Doorstep, address: str) -> None:
    """A connection that says nothing until it is sent away."""
    with contextlib.suppress(Unauthenticated):
        async with doorstep.wait(address):
            await asyncio.Event().wait()


async def start_loitering(doorstep: Doorstep, *addresses: str) -> list["asyncio.Task[None]"]:
    """One such connection per address, all with a place unless they are too many."""
    tasks = [asyncio.create_task(loiter(doorstep, address)) for address in addresses]
    await asyncio.sleep(0)
    return tasks


async def end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_whoever_comes_gets_a_place_though_strangers_hold_them_all() -> None:
    doorstep = Doorstep(60, max_places=8, max_per_address=2)
    strangers = await start_loitering(doorstep, *(f"10.0.0.{number}" for number in range(8)))
    assert doorstep.num_waiting == 8
    async with doorstep.wait("10.1.0.1"):
        assert doorstep.num_waiting == 8
        await asyncio.wait_for(strangers[0], 5)  # the one that had waited longest
        assert not any(stranger.done() for stranger in strangers[1:])
    await end(*strangers)


async def test_one_address_crowds_out_itself_alone() -> None:
    doorstep = Doorstep(60, max_places=8, max_per_address=2)
    (other,) = await start_loitering(doorstep, "10.0.0.2")
    crowd = await start_loitering(doorstep, *["10.0.0.1"] * 20)
    assert doorstep.num_waiting == 3
    await asyncio.wait_for(asyncio.gather(*crowd[:18]), 5)
    assert not other.done()
    assert not any(task.done() for task in crowd[18:])
    await end(other, *crowd)
    assert doorstep.num_waiting == 0


async def test_whoever_takes_too_long_is_sent_away() -> None:
    doorstep = Doorstep(0.05)
    with pytest.raises(Unauthenticated):
        async with doorstep.wait("10.0.0.1"):
            await asyncio.Event().wait()
    async with doorstep.wait("10.0.0.1"):  # the control: with less to wait for one stays
        await asyncio.sleep(0)
