"""PostgreSQL and Redis (or Valkey) of the fleet's own, one in the hub, one at a site of its own.

Owns their files and how they are started; both are found on the machine. Read next:
`benchmarks.fleet.fleet`.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from benchmarks.fleet.processes import Account, FleetError, Member
from benchmarks.fleet.sites import HUB, STORE, Sites


def create_redis(folder: Path, sites: Sites, port: int) -> Member:
    """A server that keeps nothing beyond its life."""
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None:
        raise FleetError("neither valkey-server nor redis-server is installed")
    options = [
        "--port",
        str(port),
        "--bind",
        sites.find_address(STORE),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    options += ["--protected-mode", "no", "--dir", str(folder)]
    command = sites.enter(STORE, [binary, *options])
    return Member("redis", STORE, command, folder / "redis.log")


def create_postgres(folder: Path, address: str, port: int) -> Member:
    """A server with an empty data folder that lets the fleet's own network in."""
    data = folder / "postgres"
    data.mkdir()
    account: Account = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        account = {"user": "postgres", "group": "postgres", "extra_groups": []}
        for parent in (folder.parent, folder):
            parent.chmod(0o711)  # keys in there are for their owner alone
        shutil.chown(data, "postgres", "postgres")
    subprocess.run(
        [_find_binary("initdb"), "-D", data, "-U", "hearth", "-A", "trust", "--no-sync"],
        check=True, stdout=subprocess.DEVNULL, cwd=data, **account,
    )  # fmt: skip
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {address}/24 trust\n")
    options = (f"port={port}", f"listen_addresses={address}", "fsync=off", "max_connections=90")
    settings = [part for option in options for part in ("-c", option)]
    command = [_find_binary("postgres"), "-D", str(data), "-k", str(data), *settings]
    log = folder / "postgres.log"
    fast = signal.SIGINT  # SIGTERM waits for everybody to leave
    return Member("postgres", HUB, command, log, account=account, stop_signal=fast)


def _find_binary(name: str) -> str:
    """Path of a server program; Debian keeps them off the PATH."""
    found = shutil.which(name)
    if found is not None:
        return found
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not candidates:
        raise FleetError(f"{name} is not installed")
    return str(candidates[-1])
