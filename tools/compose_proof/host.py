"""What the proof needs of this machine, and how it gets it: a container engine and its plugins.

Debian 12 has an engine but neither compose v2 nor buildx; both come out of packages of Debian 13,
unpacked beside everything else and not installed. Read next: `private_engine`.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from tools.compose_proof.narration import CannotRunError, ProofError, run_command, step

ENGINE_PACKAGES = {"dockerd": "docker.io", "iptables": "iptables", "debootstrap": "debootstrap"}
PLUGIN_PACKAGES = ("docker-compose", "docker-buildx")
NEXT_RELEASE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def find_obstacle() -> str | None:
    """Why this machine cannot run the proof, or None."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, for an engine of its own and the firewall"
    lacking = [name for name, bit in CAPABILITIES.items() if not _read_capabilities() >> bit & 1]
    if lacking:
        return f"root lacks {' and '.join(lacking)} here, without which no engine runs"
    if shutil.which("apt-get") is None or not Path(KEYRING).exists():
        return "it needs Debian's packages, and this is no Debian"
    missing = [name for name in ENGINE_PACKAGES if shutil.which(name) is None]
    if missing and not _can_install():
        return f"Debian's package lists have no {', '.join(ENGINE_PACKAGES[m] for m in missing)}"
    return None


def find_mirror() -> str:
    """Where this machine gets Debian from."""
    source = Path("/etc/apt/sources.list.d/debian.sources")
    if source.exists():
        for line in source.read_text(encoding="utf-8").splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    return "http://deb.debian.org/debian"


def install_engine() -> None:
    """Installs the engine's packages that are missing; none of them starts anything."""
    missing = [package for name, package in ENGINE_PACKAGES.items() if shutil.which(name) is None]
    if not missing:
        return
    with step(f"installing Debian's {', '.join(missing)}"), _no_services_start():
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        run_command(command, environ=QUIET)


def fetch_plugins(cache: Path) -> Path:
    """A folder for `DOCKER_CONFIG` that has compose v2 and buildx."""
    config = cache / "docker-config"
    plugins = config / "cli-plugins"
    if (plugins / "docker-compose").exists() and (plugins / "docker-buildx").exists():
        return config
    with step("unpacking compose and buildx from Debian 13's packages"):
        work = cache / "plugins"
        shutil.rmtree(work, ignore_errors=True)
        for folder in ("lists/partial", "cache/archives/partial", "packages", "tree"):
            (work / folder).mkdir(parents=True)
        sources = work / "sources.list"
        sources.write_text(f"deb [signed-by={KEYRING}] {find_mirror()} {NEXT_RELEASE} main\n")
        apt = ["apt-get", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-"]
        apt += ["-o", f"Dir::State::lists={work}/lists", "-o", f"Dir::Cache={work}/cache"]
        run_command([*apt, "update", "-qq"])
        # As root: apt's own user may not write to the cache.
        apt += ["-o", "APT::Sandbox::User=root"]
        run_command([*apt, "download", "-qq", *PLUGIN_PACKAGES], folder=work / "packages")
        for package in (work / "packages").glob("*.deb"):
            run_command(["dpkg", "-x", str(package), str(work / "tree")])
        found = work / "tree/usr/libexec/docker/cli-plugins"
        if not found.is_dir():
            raise ProofError("Debian's packages have no cli-plugins where they used to be")
        shutil.copytree(found, plugins, dirs_exist_ok=True)
        shutil.rmtree(work)
    return config


def _read_capabilities() -> int:
    """What this process may do, as the kernel's bits."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)


def _can_install() -> bool:
    """True when apt knows the engine's packages, if need be after reading the lists anew."""
    for refresh in (False, True):
        try:
            if refresh:
                run_command(["apt-get", "update", "-qq"], timeout_s=180)
            simulated = ["apt-get", "install", "-s", "-qq", *ENGINE_PACKAGES.values()]
            run_command(simulated, environ=QUIET, timeout_s=60)
        except ProofError:
            continue
        return True
    return False


class _no_services_start:
    """While it is open, packages that are installed do not start their services."""

    def __init__(self) -> None:
        self._file = Path("/usr/sbin/policy-rc.d")
        self._is_ours = not self._file.exists()

    def __enter__(self) -> None:
        if self._is_ours:
            self._file.write_text("#!/bin/sh\nexit 101\n")
            self._file.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._file.unlink(missing_ok=True)


def require_machine() -> None:
    """Raises: `CannotRunError` when the proof cannot run here."""
    obstacle = find_obstacle()
    if obstacle is not None:
        raise CannotRunError(obstacle)
