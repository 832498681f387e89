"""Runs the proof from nothing to nothing; `make compose-proof`.

    python -m tools.compose_proof               build, start, use, hurt, restart, take down
    python -m tools.compose_proof --can-run     only says whether it can run here

Exit status: 0 proved, 1 something does not hold, 3 this machine cannot run it.
"""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tools.compose_proof import claims, host, root_filesystems
from tools.compose_proof.compose_project import ComposeProject, copy_tree, create_project
from tools.compose_proof.limit_claims import check_limits, check_second_gateway
from tools.compose_proof.metrics_claims import check_metrics
from tools.compose_proof.narration import CannotRunError, ProofError, claim, say, step
from tools.compose_proof.private_engine import BRIDGE_ADDRESS, Engine, run_engine
from tools.compose_proof.standby_claims import check_standby
from tools.compose_proof.torch_index import fetch_torch, serve_index

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_CACHE = Path("/var/tmp/hearth-compose-proof")
CANNOT_RUN = 3


def main() -> int:
    """The exit status; everything else is said on the way."""
    parser = argparse.ArgumentParser(prog="compose-proof", description=__doc__)
    parser.add_argument("--can-run", action="store_true", help="only say whether it can run here")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="what runs share")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    begun = time.monotonic()
    try:
        host.require_machine()
        if options.can_run:
            return 0
        with _own_folders(options.cache) as scratch:
            prove(options.cache, scratch)
    except CannotRunError as error:
        say(f"CANNOT RUN HERE: {error}")
        return CANNOT_RUN
    except ProofError as error:
        say(f"FAILED: {error}")
        return 1
    say(f"PROVED in {time.monotonic() - begun:.0f} s")
    return 0


def prove(cache: Path, scratch: Path) -> None:
    """Makes what is missing, then runs the fleet and tries every claim."""
    host.install_engine()
    config = host.fetch_plugins(cache)
    recipes = (root_filesystems.python_recipe(BRIDGE_ADDRESS), root_filesystems.STORES)
    archives = [root_filesystems.make_archive(recipe, cache) for recipe in recipes]
    wheels = fetch_torch(ROOT, cache)
    tree = scratch / "hearth"
    copy_tree(ROOT, tree)
    with run_engine(cache, scratch, config) as engine:
        for recipe, archive in zip(recipes, archives, strict=True):
            engine.load(recipe, archive)
        build_stores(engine, tree)
        project = create_project(engine, tree, f"hearth-proof-{os.getpid()}")
        claims.check_files(project)
        with serve_index(wheels, BRIDGE_ADDRESS) as index:
            build(project, index)
        with taken_down_at_the_end(project):
            with step("starting gateway, two nodes, hot standby, PostgreSQL and Valkey"):
                project.start()
            claims.check_rights(project)
            tenants = claims.create_tenants(project)
            claims.check_regions(project, tenants)
            claims.check_health(project)
            check_metrics(project, tenants)
            check_limits(project, tenants)
            check_standby(project, tenants)
            claims.check_loss_of_a_node(project, tenants)
            claims.check_restart(project, tenants)
            check_second_gateway(project, tenants)


def build_stores(engine: Engine, tree: Path) -> None:
    """What stands for images that are not ours, under their names."""
    folder = str(tree / "tools/compose_proof/stand_ins")
    names = {
        "postgres": "postgres:17-bookworm",
        "valkey": "valkey/valkey:8-bookworm",
        "prometheus": "prom/prometheus:v3.5.0",
    }
    for target, tag in names.items():
        engine.run("build", "--quiet", "--target", target, "--tag", tag, folder)
    claim(True, "Debian's PostgreSQL 17, Valkey 8 and Prometheus stand for the official images")


def build(project: ComposeProject, torch_index: str) -> None:
    """Both images of ours, without starting anything."""
    argument = f"TORCH_INDEX_URL={torch_index}"
    for service in ("gateway", "node-weur"):
        with step(f"building the image of {service}"):
            project.compose("build", "--build-arg", argument, service)


@contextmanager
def taken_down_at_the_end(project: ComposeProject) -> Iterator[None]:
    """Takes containers, networks and volumes away, after what they said if something failed."""
    try:
        yield
    except BaseException:
        say("what the containers said last:\n" + _read_logs(project))
        raise
    finally:
        with step("taking the fleet down"):
            everything = ("--profile", "*", "down", "--volumes", "--remove-orphans")
            files = claims.TWO_GATEWAYS_FILES
            project.compose(*everything, "--timeout", "10", files=files)
    rest = project.engine.run("ps", "--all", "--quiet") + project.engine.run("volume", "ls", "-q")
    claim(not rest, "no container and no volume is left", rest)


@contextmanager
def _own_folders(cache: Path) -> Iterator[Path]:
    """A folder for this run; another run waits until it is gone."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="hearth-proof-", dir="/tmp"))
    try:
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read_logs(project: ComposeProject) -> str:
    try:
        states = project.compose("ps", "--all")
        return states + project.compose("logs", "--no-color", "--tail", "40")
    except ProofError as error:
        return str(error)


def _end(number: int, _: FrameType | None) -> NoReturn:
    """A stop signal takes the ordinary way out, past every clean-up."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
