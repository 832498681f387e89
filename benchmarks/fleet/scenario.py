"""What is done to the fleet while it serves: everything replaced in order, or hurt without a word.

Owns the order of events; must not know what must hold. Read next: `benchmarks.fleet.proof`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet.checks import Downtime
from benchmarks.fleet.fleet import SILENCE_S, Fleet
from benchmarks.fleet.processes import FleetError, Member, wait_until
from benchmarks.fleet.sites import STORE
from contracts.fleet_view import DRAINS_PATH, NODES_PATH

MOVE_AFTER_S = 2
"""What ends within that time needs no other node; on quick machines that may be everything."""
_PAUSE_S = 1.0
_BETWEEN_S = 2.0
_SLOW_SHARE_S = (0.02, 0.18)
"""Who is slow works and sleeps so long, in turn."""


@dataclass
class Scenario:
    """Events, as they are carried out."""

    fleet: Fleet
    kills: list[Downtime] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    """Nodes whose streams had to go on elsewhere."""
    told: list[str] = field(default_factory=list)
    """What was done."""
    left_out: list[str] = field(default_factory=list)
    """What was not done, for this machine does not allow it."""

    def say(self, text: str) -> None:
        """Notes and prints what is done."""
        self.told.append(text)
        print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)

    async def replace_everything(self) -> None:
        """Every process once, in order and by its operator's means."""
        first, *others = self.fleet.nodes
        await self._replace_node(first, MOVE_AFTER_S)
        for name in others:
            await self._replace_node(name, 0)
        for name in self.fleet.gateways:
            self.say(f"restart {name}")
            await self._restart(self.fleet.members[name])
            await self.fleet.wait_serving()
        for name in ("redis", "postgres"):
            self.say(f"restart {name}")
            await self.fleet.members[name].stop()
            self.fleet.members[name].start()
            await asyncio.sleep(_BETWEEN_S)
            await self.fleet.wait_serving()
        if "standby" in self.fleet.members:
            self.say("restart standby")
            await self.fleet.members["standby"].stop()
            self.fleet.members["standby"].start()

    async def hurt_everything(self) -> None:
        """Everything that can happen to a fleet without a word."""
        events: list[Callable[[], Awaitable[None]]] = [
            self._kill_node,
            self._freeze_node,
            lambda: self._slow("enam-1"),
            lambda: self._cut_site("apac"),
            self._kill_redis,
            self._freeze_redis,
            lambda: self._slow("redis"),
            self._kill_postgres,
            self._freeze_postgres,
            lambda: self._cut_site(STORE),
            self._kill_gateway,
            self._freeze_gateway,
            lambda: self._slow("gw-2a"),
            lambda: self._cut_site("enam"),
        ]
        for event in events:
            await event()
            await asyncio.sleep(_BETWEEN_S)
            await self.fleet.wait_serving()

    async def hurt_halves(self) -> None:
        """Nodes for prompts and nodes for answers killed, frozen and restarted in turn."""
        for name in self.fleet.roles:
            member = self.fleet.members[name]
            for event in (self._kill_half, self._freeze_half, self._restart_half):
                await event(member)
                await asyncio.sleep(_BETWEEN_S)
                await self.fleet.wait_serving()
        await self._cut_site("apac")
        await self.fleet.wait_serving()
        await asyncio.sleep(_BETWEEN_S)

    def _name_half(self, member: Member) -> str:
        return f"{member.name} ({self.fleet.roles[member.name]})"

    async def _kill_half(self, member: Member) -> None:
        self.say(f"kill -9 {self._name_half(member)}, and start it again")
        await member.kill()
        await asyncio.sleep(_PAUSE_S)
        member.start()

    async def _freeze_half(self, member: Member) -> None:
        """All of it: server, cores and what moves their blocks."""
        self.say(f"SIGSTOP {self._name_half(member)}, beyond the silence that is borne")
        pids = _list_family(member)
        _signal_all(pids, signal.SIGSTOP)
        await asyncio.sleep(SILENCE_S + 3.0)
        _signal_all(pids, signal.SIGCONT)

    async def _restart_half(self, member: Member) -> None:
        self.say(f"restart {self._name_half(member)}")
        await self._restart(member)

    async def _replace_node(self, name: str, move_after_s: int) -> None:
        """Drained while something runs there, stopped, started, and back."""
        gateway = self.fleet.gateways[0]

        async def is_busy() -> bool:
            return bool(await self._count_open(name))

        async def is_empty() -> bool:
            return await self._count_open(name) == 0

        await wait_until(is_busy, f"{name} to be busy")
        self.say(f"drain, restart and undrain {name}")
        drain = {"node_id": name, "move_after_s": move_after_s}
        await self.fleet.call(gateway, "PUT", DRAINS_PATH, drain)
        await asyncio.sleep(move_after_s)
        await wait_until(is_empty, f"{name} to be empty")
        self.drained.append(name)
        await self._restart(self.fleet.members[name])
        await self.fleet.call(gateway, "DELETE", DRAINS_PATH, query=f"?node_id={name}")
        await self.fleet.wait_serving()

    async def _count_open(self, name: str) -> int | None:
        """Requests at a node, running or waiting, as the first gateway knows them; None where it
        knows no such node.
        """
        for state in await self.fleet.call(self.fleet.gateways[0], "GET", NODES_PATH):
            if state["node_id"] == name:
                return sum(load["num_running"] + load["num_waiting"] for load in state["loads"])
        return None

    async def _restart(self, member: Member) -> None:
        """As its operator would."""
        await member.stop()
        member.start()
        await member.wait_ready(self.fleet.session)

    async def _kill_node(self) -> None:
        self.say("kill -9 weur-1, and start it again")
        member = self.fleet.members["weur-1"]
        await member.kill()
        await asyncio.sleep(_PAUSE_S)
        member.start()

    async def _freeze_node(self) -> None:
        self.say("SIGSTOP weur-2 beyond the silence that is borne")
        await self._freeze(self.fleet.members["weur-2"], SILENCE_S + 3.0)

    async def _freeze_gateway(self) -> None:
        self.say("SIGSTOP gw-2b")
        await self._freeze(self.fleet.members["gw-2b"], 3.0)

    async def _freeze_redis(self) -> None:
        self.say("SIGSTOP redis")
        await self._freeze(self.fleet.members["redis"], 3.0)

    async def _freeze(self, member: Member, seconds: float) -> None:
        member.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        member.send(signal.SIGCONT)

    async def _slow(self, name: str) -> None:
        self.say(f"{name} works a tenth of the time")
        member = self.fleet.members[name]
        pids = _list_family(member)
        works_s, sleeps_s = _SLOW_SHARE_S
        end_s = time.monotonic() + 4.0
        while time.monotonic() < end_s:
            _signal_all(pids, signal.SIGSTOP)
            await asyncio.sleep(sleeps_s)
            _signal_all(pids, signal.SIGCONT)
            await asyncio.sleep(works_s)

    async def _cut_site(self, site: str) -> None:
        """A black hole between what is there (nodes, gateways, Redis) and all others."""
        if not self.fleet.sites.are_apart:
            self.left_out.append(f"a black hole around the site {site}")
            print(f"  NOT DONE: {self.left_out[-1]}, which takes root and `ip`", flush=True)
            return
        self.say(f"cut the site {site} off, so that nobody is told")
        self.fleet.sites.cut(site)
        await asyncio.sleep(SILENCE_S + 3.0)
        self.fleet.sites.join(site)

    async def _kill_redis(self) -> None:
        self.say("kill -9 redis, which forgets everything, and start it again")
        member = self.fleet.members["redis"]
        await member.kill()
        await asyncio.sleep(_PAUSE_S)
        member.start()

    async def _kill_postgres(self) -> None:
        """Its back ends, too, which would end what they are at."""
        self.say("kill -9 postgres, and start it again")
        member = self.fleet.members["postgres"]
        _signal_all(_list_family(member), signal.SIGKILL)
        await member.kill()
        await asyncio.sleep(_PAUSE_S)
        member.start()
        await self.fleet.wait_database()

    async def _freeze_postgres(self) -> None:
        """For less than known tokens are trusted."""
        self.say("SIGSTOP postgres")
        pids = _list_family(self.fleet.members["postgres"])
        _signal_all(pids, signal.SIGSTOP)
        await asyncio.sleep(4.0)
        _signal_all(pids, signal.SIGCONT)

    async def _kill_gateway(self) -> None:
        name = "gw-1b"
        member = self.fleet.members[name]
        if member.process is None:
            raise FleetError(f"{name} does not run")
        self.say(f"kill -9 {name}, and start it again")
        killed_unix_s = time.time()
        await member.kill()
        self.kills.append(Downtime(name, killed_unix_s, time.time()))
        await asyncio.sleep(_PAUSE_S)
        member.start()


def _list_family(member: Member) -> list[int]:
    """The program and all processes below it."""
    assert member.process is not None
    return [member.process.pid, *_list_descendants(member.process.pid)]


def _list_descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found += [child, *_list_descendants(child)]
    return found


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)
