"""A container engine of the proof's own: its socket, its data, its networks; gone at the end.

Images and layers stay in the cache, so that the next run builds only what has changed. Must not
touch an engine that already runs on this machine. Read next: `network_traces`.
"""

import ipaddress
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.compose_proof import network_traces
from tools.compose_proof.narration import ProofError, claim, run_command, say, step
from tools.compose_proof.root_filesystems import Recipe

BRIDGE_ADDRESS = "172.30.0.1"
NETWORKS = ("172.30.0.0/24", "172.31.0.0/16")
START_LIMIT_S = 60.0
CGROUP = "hearth-proof"
KEPT_BUILD_CACHE = "6GB"


@dataclass(frozen=True)
class Engine:
    """How to talk to an engine."""

    environ: Mapping[str, str]

    def run(self, *words: str, folder: Path | None = None, timeout_s: float = 900) -> str:
        """What `docker WORDS` prints."""
        return run_command(
            ["docker", *words], environ=self.environ, folder=folder, timeout_s=timeout_s
        )

    def load(self, recipe: Recipe, archive: Path) -> None:
        """Gives the engine a stand-in image, unless it has this very one."""
        label = "hearth.recipe"
        shown = ["image", "inspect", "-f", f'{{{{index .Config.Labels "{label}"}}}}', recipe.tag]
        try:
            if self.run(*shown).strip() == recipe.digest:
                return
        except ProofError:
            pass  # there is no such image yet
        with step(f"giving the engine {recipe.tag}, made of Debian's packages"):
            changes = [*recipe.settings, f"LABEL {label}={recipe.digest}"]
            options = [word for change in changes for word in ("--change", change)]
            self.run("import", *options, str(archive), recipe.tag)


@contextmanager
def run_engine(cache: Path, scratch: Path, config: Path) -> Iterator[Engine]:
    """An engine that runs as long as the block; afterwards the machine is as it was.

    Raises: `ProofError` when it does not start, or when something of it is left.
    """
    _require_free_networks()
    before = network_traces.read_state(scratch)
    environ = {
        "DOCKER_HOST": f"unix://{scratch}/engine.sock",
        "DOCKER_CONFIG": str(config),
        "DOCKER_BUILDKIT": "1",
    }
    engine = Engine(environ)
    with step("starting a container engine of our own"):
        process = _start(cache, scratch)
        try:
            _await_engine(engine, process, scratch / "engine.log")
        except BaseException:
            _stop(process, before)
            raise
    try:
        yield engine
    finally:
        with step("stopping the engine, putting the firewall back"):
            _prune(engine)
            _stop(process, before)
            _delete_state(cache / "engine")
    changes = network_traces.read_state(scratch).find_changes(before)
    claim(not changes, "firewall, interfaces and mounts are as before", "; ".join(changes))


def _start(cache: Path, scratch: Path) -> "subprocess.Popen[bytes]":
    """The daemon, in a mount namespace of its own, so that its mounts end with it."""
    command = ["unshare", "--mount", "--propagation", "private", "dockerd"]
    command += ["--host", f"unix://{scratch}/engine.sock", "--pidfile", f"{scratch}/engine.pid"]
    command += ["--data-root", str(cache / "engine"), "--exec-root", f"{scratch}/exec"]
    command += ["--storage-driver", "overlay2", "--bip", f"{BRIDGE_ADDRESS}/24", "--mtu", "1400"]
    command += ["--default-address-pool", f"base={NETWORKS[1]},size=24"]
    command += ["--cgroup-parent", f"/{CGROUP}"]
    with (scratch / "engine.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _await_engine(engine: Engine, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            engine.run("info", timeout_s=20)
        except ProofError:
            time.sleep(0.3)
            continue
        return
    printed = log.read_text(errors="replace")[-3000:]
    raise ProofError(f"the engine does not start:\n{printed}")


def _stop(process: "subprocess.Popen[bytes]", before: network_traces.NetworkState) -> None:
    """Ends the daemon and takes back what it did to the machine."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            say("the engine does not end by itself and is killed")
            process.kill()
            process.wait(20)
    network_traces.restore(before)
    for root in Path("/sys/fs/cgroup").rglob(CGROUP):
        for folder in sorted((f for f in root.rglob("*") if f.is_dir()), reverse=True):
            folder.rmdir()
        root.rmdir()


def _prune(engine: Engine) -> None:
    """Keeps the cache small: layers of earlier builds that nothing refers to any more."""
    try:
        engine.run("image", "prune", "--force")
        engine.run("builder", "prune", "--force", "--keep-storage", KEPT_BUILD_CACHE)
    except ProofError as error:
        say(f"the cache was not pruned: {error}")


def _delete_state(data: Path) -> None:
    """Leaves images and layers only: no container, volume or network outlives a run."""
    for name in ("containers", "network", "volumes", "tmp"):
        shutil.rmtree(data / name, ignore_errors=True)


def _require_free_networks() -> None:
    """Raises: `ProofError` when the engine's networks are somebody else's here."""
    ours = [ipaddress.ip_network(network) for network in NETWORKS]
    for line in run_command(["ip", "-4", "route"]).splitlines():
        try:
            theirs = ipaddress.ip_network(line.split()[0])
        except ValueError:
            continue
        if any(theirs.overlaps(network) for network in ours):
            raise ProofError(f"the engine's networks {NETWORKS} meet the route `{line.strip()}`")
