"""Where the fleet's processes run: a network namespace for each site, or all on loopback.

Owns namespaces, a bridge in the one of them that has PostgreSQL and the clients, and their end;
the machine's own network is not touched. Must not know what runs there. Read next:
`benchmarks.fleet.fleet`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

HUB = "hub"
STORE = "store"
"""Where Redis is, so that it can be cut off from everybody."""
_SUBNET = "10.77.0"


@dataclass(frozen=True)
class Sites:
    """The sites by name; the hub is the one in which the benchmark itself runs."""

    prefix: str
    """Of the namespaces' names; empty: everything is on loopback."""
    names: tuple[str, ...]

    @property
    def are_apart(self) -> bool:
        """True when each site has a network of its own."""
        return bool(self.prefix)

    def find_address(self, site: str) -> str:
        """Where its processes listen."""
        if not self.are_apart:
            return "127.0.0.1"
        return f"{_SUBNET}.{1 if site == HUB else 11 + self.names.index(site)}"

    def enter(self, site: str, command: list[str]) -> list[str]:
        """`command`, run at the site; its process id stays that of the outermost program."""
        if not self.are_apart or site == HUB:
            return command
        return ["ip", "netns", "exec", f"{self.prefix}{site}", *command]

    def cut(self, site: str) -> None:
        """Nothing reaches the site or leaves it from now on, and nobody is told."""
        _run("ip", "link", "set", _name_end(self.names.index(site)), "down")

    def join(self, site: str) -> None:
        """Ends `cut`."""
        _run("ip", "link", "set", _name_end(self.names.index(site)), "up")


def can_be_apart() -> bool:
    """True when this process may make namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@contextmanager
def make_sites(names: tuple[str, ...]) -> Generator[Sites]:
    """Namespaces for the hub and every site, gone after the block."""
    sites = Sites(f"hearth-{os.getpid()}-", names)
    hub = sites.prefix + HUB
    made: list[str] = []
    try:
        for name in (HUB, *names):
            _run("ip", "netns", "add", sites.prefix + name)
            made.append(sites.prefix + name)
            _run("ip", "-n", sites.prefix + name, "link", "set", "lo", "up")
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "addr", "add", f"{sites.find_address(HUB)}/24", "dev", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for index, name in enumerate(names):
            own, end = sites.prefix + name, _name_end(index)
            pair = ("type", "veth", "peer", "name", "eth0", "netns", own)
            _run("ip", "-n", hub, "link", "add", end, *pair)
            _run("ip", "-n", hub, "link", "set", end, "master", "bridge", "up")
            _run("ip", "-n", own, "addr", "add", f"{sites.find_address(name)}/24", "dev", "eth0")
            _run("ip", "-n", own, "link", "set", "eth0", "up")
        yield sites
    finally:
        for name in made:  # links go with their namespaces
            _run("ip", "netns", "del", name)


def run_in_hub(sites: Sites, command: list[str]) -> int:
    """The exit status of `command`, run in the hub. Who ends this process ends that one, which is
    waited for however long it takes to end what it has started.
    """
    entered = ["ip", "netns", "exec", sites.prefix + HUB, *command]
    process = subprocess.Popen(entered, start_new_session=True)  # a terminal's Ctrl-C comes once
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGINT))
    return process.wait()


def _name_end(index: int) -> str:
    """The hub's end of a site's link."""
    return f"site{index}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
