"""What the processes hold: memory, descriptors, threads and tasks, sampled from outside.

Owns reading `/proc` and two gauges of `/metrics`; must not know what counts as too much. A process
is known by its member of the fleet and its id; those below a member's first one are its children.
Read next: `benchmarks.soak.verdict`.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.fleet.fleet import Fleet

PERIOD_S = 5.0
_TASKS = re.compile(r"^hearth_(?:gateway|node)_tasks (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment. Units: seconds since the beginning, MiB."""

    at_s: float
    process: str
    """Its member, and for a child its program and id: `weur-1/engine_core 4711`."""
    rss_mib: float
    num_descriptors: int
    num_threads: int
    num_tasks: int | None
    """None: it has no event loop, or does not tell."""
    is_rest: bool
    """True while the load paused."""


class Watch:
    """All samples so far."""

    def __init__(self, fleet: Fleet, began_s: float) -> None:
        """`began_s` is of the monotonic clock."""
        self.samples: list[Sample] = []
        self._fleet = fleet
        self._began_s = began_s

    async def run(self) -> None:
        """Samples for ever."""
        while True:
            await self.look(is_rest=False)
            await asyncio.sleep(PERIOD_S)

    async def look(self, *, is_rest: bool) -> None:
        """Samples every process once."""
        at_s = time.monotonic() - self._began_s
        children = list_children()
        for name, member in self._fleet.members.items():
            if member.process is None or name in ("postgres", "redis"):
                continue
            pid = member.process.pid
            num_tasks = await self._read_tasks(name)
            self._note(at_s, name, pid, num_tasks, is_rest=is_rest)
            for child in find_descendants(children, pid):
                process = f"{name}/{find_program(child)} {child}"
                self._note(at_s, process, child, None, is_rest=is_rest)

    def _note(
        self, at_s: float, process: str, pid: int, num_tasks: int | None, *, is_rest: bool
    ) -> None:
        """One process, unless it has just ended."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            num_descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found = dict(line.split(":", 1) for line in status.splitlines())
            rss_mib = int(found["VmRSS"].split()[0]) / 1024
        except (OSError, KeyError):
            return
        num_threads = int(found["Threads"])
        sample = Sample(at_s, process, rss_mib, num_descriptors, num_threads, num_tasks, is_rest)
        self.samples.append(sample)

    async def _read_tasks(self, name: str) -> int | None:
        """What the process says of its tasks."""
        fleet = self._fleet
        headers = {"authorization": f"Bearer {fleet.operator}"}
        url = fleet.metrics_urls.get(name)
        if name in fleet.admin_urls:
            url = fleet.admin_urls[name] + "/metrics"
        if url is None:
            return None
        try:
            async with fleet.session.get(url, headers=headers) as response:
                found = _TASKS.search(await response.text())
        except aiohttp.ClientError:
            return None
        return None if found is None else int(float(found.group(1)))


def find_program(pid: int) -> str:
    """The module that a process of ours runs, without its package."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return words[words.index("-m") + 1].rpartition(".")[2]
    except (OSError, ValueError, IndexError):
        return "process"


def list_children() -> dict[int, list[int]]:
    """The ids of all processes by that of their parent."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    return children


def find_descendants(children: dict[int, list[int]], pid: int) -> list[int]:
    """All processes below `pid`."""
    own = sorted(children.get(pid, ()))
    return own + [far for child in own for far in find_descendants(children, child)]
