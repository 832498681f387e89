"""The processes below one, from the system's own list."""

import os
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessRow:
    """One process. `started` tells two lives of one pid apart."""

    pid: int
    parent_pid: int
    started: str
    command: str


def list_processes() -> list[ProcessRow]:
    """All processes that are not zombies."""
    listing = subprocess.run(
        ["ps", "-e", "-ww", "-o", "pid=,ppid=,stat=,lstart=,args="],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    rows: list[ProcessRow] = []
    for line in listing.stdout.splitlines():
        pid, parent_pid, state, *rest = line.split(None, 8)
        if not state.startswith("Z"):
            # lstart is five words: Sat Nov 21 11:20:31 2026
            rows.append(ProcessRow(int(pid), int(parent_pid), " ".join(rest[:5]), rest[-1]))
    return rows


def list_descendants(pid: int) -> list[ProcessRow]:
    """Children of `pid`, their children and so on."""
    rows = list_processes()
    found: list[ProcessRow] = []
    parents = {pid}
    while parents:
        generation = [row for row in rows if row.parent_pid in parents]
        found.extend(generation)
        parents = {row.pid for row in generation}
    return found


def find_descendant(pid: int, words: str) -> ProcessRow:
    """The one process below `pid` whose command line contains `words`."""
    (found,) = [row for row in list_descendants(pid) if words in row.command]
    return found


def list_survivors(rows: list[ProcessRow]) -> list[ProcessRow]:
    """Those of `rows` that still run."""
    identities = {(row.pid, row.started) for row in rows}
    return [row for row in list_processes() if (row.pid, row.started) in identities]
