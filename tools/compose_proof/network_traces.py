"""The machine's firewall, interfaces and mounts before and after: an engine must leave no trace.

An engine that stops leaves its chains, a closed FORWARD chain, a bridge and forwarding switched on.
Owns what is put back and how it is compared. Read next: `private_engine`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.compose_proof.narration import ProofError, run_command

FAMILIES = ("iptables", "ip6tables")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_COUNTERS = re.compile(r"\s*\[\d+:\d+\]")


@dataclass(frozen=True)
class NetworkState:
    """What the network of this machine is like at one moment."""

    saved: dict[str, str]
    """By family, as `iptables-save` prints it."""
    forwarding: str
    interfaces: frozenset[str]
    mounts: frozenset[str]

    def find_changes(self, since: "NetworkState") -> list[str]:
        """What is different now, in words."""
        changes: list[str] = []
        for family in FAMILIES:
            now, then = set(_list_rules(self.saved[family])), set(_list_rules(since.saved[family]))
            changes += [f"{family} has {rule}" for rule in sorted(now - then)]
            changes += [f"{family} lacks {rule}" for rule in sorted(then - now)]
        if self.forwarding != since.forwarding:
            changes.append("net.ipv4.ip_forward was changed")
        changes += [f"interface {name}" for name in sorted(self.interfaces - since.interfaces)]
        changes += [f"mount {place}" for place in sorted(self.mounts - since.mounts)]
        return changes


def read_state(folder: Path) -> NetworkState:
    """The present state; of mounts, those below `folder`."""
    mounts = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    return NetworkState(
        saved={family: run_command([f"{family}-save"]) for family in FAMILIES},
        forwarding=FORWARDING.read_text().strip(),
        interfaces=frozenset(
            place.name for place in Path("/sys/class/net").iterdir() if not _is_passing(place.name)
        ),
        mounts=frozenset(place for place in mounts if place.startswith(str(folder))),
    )


def restore(state: NetworkState) -> None:
    """Puts firewall and forwarding back and removes bridges that were not there."""
    for family, saved in state.saved.items():
        for table in _list_tables(run_command([f"{family}-save"])) - _list_tables(saved):
            _empty(family, table)
        if saved.strip():
            run_command([f"{family}-restore"], text=saved)
    FORWARDING.write_text(state.forwarding)
    for place in Path("/sys/class/net").iterdir():
        if place.name not in state.interfaces and place.name.startswith(("docker0", "br-", "veth")):
            _try(["ip", "link", "delete", place.name])


def _empty(family: str, table: str) -> None:
    """Takes every rule out of a table that did not exist before."""
    run_command([family, "-t", table, "-F"])
    run_command([family, "-t", table, "-X"])
    policies = run_command([family, "-t", table, "-S"])
    for chain in re.findall(r"^-P (\S+) DROP$", policies, re.MULTILINE):
        run_command([family, "-t", table, "-P", chain, "ACCEPT"])


def _list_tables(saved: str) -> set[str]:
    return set(re.findall(r"^\*(\S+)$", saved, re.MULTILINE))


def _list_rules(saved: str) -> Iterator[str]:
    """Rules, chains of somebody's own and closed policies, each with its table."""
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(("-A", ":")) and not line.startswith("#"):
            rule = _COUNTERS.sub("", line)
            if not (rule.startswith(":") and rule.endswith(" ACCEPT")):
                yield f"{table}: {rule}"


def _is_passing(name: str) -> bool:
    """Ends of virtual cables come and go with containers, others' too."""
    return name.startswith("veth")


def _try(command: list[str]) -> None:
    """Runs what may have happened by itself meanwhile."""
    try:
        run_command(command)
    except ProofError:
        return
