"""Builds `.venv` for `make`: what is locked, torch, Hearth, then a stamp for the next call.

Owns the order of installation and where torch comes from; the versions are `constraints.txt`'s, the
hashes that files must have those of `locks/`. Torch and what GPUs need beside it have none there.
Standard library only, since it runs before anything is installed. Read next: the Makefile.

Environment:
    HEARTH_TORCH_INDEX  the package index torch is asked from first. Default: PyTorch's CPU index on
                        Linux without an NVIDIA GPU, nothing elsewhere; empty: pip's own sources.
"""

from __future__ import annotations  # an old Python must get as far as check_python()

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MINIMUM_PYTHON = (3, 11)
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_LIMIT_S = 8.0
EXTRAS: dict[str, list[str]] = {"run": [], "dev": ["dev"]}
LOCKS: dict[str, list[str]] = {"run": ["build", "run"], "dev": ["dev"]}


def say(message: str) -> None:
    """Prints one line of progress."""
    print(f"[setup] {message}", flush=True)


def fail(message: str) -> NoReturn:
    """Ends with an explanation and what to do about it."""
    sys.exit(f"[setup] error: {message}")


def main() -> None:
    """Brings `.venv` up to date with the profile asked for."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--profile", choices=sorted(EXTRAS), default="run")
    profile: str = parser.parse_args().profile

    check_python()
    torch_index = choose_torch_index()
    uses_gpu = has_nvidia_gpu() and not torch_index.rstrip("/").endswith("/cpu")
    if is_current(profile, uses_gpu):
        return
    check_compiler(uses_gpu)
    create_venv()
    with open(VENV / ".hearth-setup.lock", "w") as lock:  # two `make`s at once take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(profile, uses_gpu):
            return
        started = time.monotonic()
        install_locked(*(ROOT / "locks" / f"{name}.txt" for name in LOCKS[profile]))
        install_torch(torch_index)  # whose requirements are there by now, with checked hashes
        install_hearth([*EXTRAS[profile], *(["gpu"] if uses_gpu else [])], uses_gpu)
        stamp_path(profile).write_text(digest_of_inputs(uses_gpu))
        say(f"ready after {time.monotonic() - started:.0f} s")


# -- what the machine has ------------------------------------------------------------------------


def check_python() -> None:
    """Refuses a Python that is too old or that cannot create a virtual environment."""
    if sys.version_info < MINIMUM_PYTHON:
        wanted = ".".join(map(str, MINIMUM_PYTHON))
        fail(
            f"Python {wanted} or newer is needed, {sys.executable} is {sys.version.split()[0]}. "
            f"Install a newer one, or name it: make PYTHON=/path/to/python{wanted}"
        )
    try:
        import ensurepip  # noqa: F401  (Debian and Ubuntu ship it apart from Python)
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        fail(
            f"{sys.executable} has no venv module. On Debian or Ubuntu: "
            f"sudo apt install python{version}-venv"
        )


def has_nvidia_gpu() -> bool:
    """Whether an NVIDIA driver is loaded."""
    return sys.platform == "linux" and Path("/proc/driver/nvidia/version").exists()


def check_compiler(uses_gpu: bool) -> None:
    """Refuses a GPU machine without a C compiler: triton builds its launchers with one."""
    candidates = filter(None, [os.environ.get("CC"), "cc", "gcc", "clang"])
    if uses_gpu and not any(shutil.which(name) for name in candidates):
        fail(
            "this machine has an NVIDIA GPU, and triton needs a C compiler to drive it. "
            "Install one (sudo apt install gcc), or stay on the CPU: "
            f"make run HEARTH_TORCH_INDEX={PYTORCH_CPU_INDEX}"
        )


# -- is there anything to do? --------------------------------------------------------------------


def digest_of_inputs(uses_gpu: bool) -> str:
    """A hash of everything the installed environment depends on."""
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    digest = hashlib.sha256(f"{uses_gpu} {packages}".encode())
    locks = sorted((ROOT / "locks").glob("*.txt"))
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", *locks, VENV / "pyvenv.cfg"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stamp_path(profile: str) -> Path:
    """Where the digest of the last installation of a profile lies."""
    return VENV / f".hearth-{profile}.stamp"


def is_current(profile: str, uses_gpu: bool) -> bool:
    """Whether the profile, or the larger `dev`, is installed from these very inputs."""
    stamps = [path for path in {stamp_path(profile), stamp_path("dev")} if path.exists()]
    if not stamps or not PYTHON.exists():
        return False
    digest = digest_of_inputs(uses_gpu)
    return any(stamp.read_text() == digest for stamp in stamps)


# -- installing ----------------------------------------------------------------------------------


def create_venv() -> None:
    """Creates `.venv`, or again where its Python has gone or is too old."""
    if PYTHON.exists():
        check = f"import pip, sys; sys.exit(sys.version_info < {MINIMUM_PYTHON})"
        if subprocess.run([PYTHON, "-c", check], check=False).returncode == 0:
            return
    say(f"creating .venv with Python {sys.version.split()[0]}")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False).returncode:
        fail(f"{sys.executable} -m venv failed; its message is above")


def pip_command(*arguments: str) -> list[str]:
    """The command line of `.venv`'s pip, which reads the user's own configuration."""
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]


def pip_install(*arguments: str) -> bool:
    """Installs under the pinned versions; whether that worked. pip prints errors only."""
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    command = pip_command("install", "-qq", *constraints, *arguments)
    return subprocess.run(command, check=False).returncode == 0


def pinned_torch() -> str:
    """The torch version in `constraints.txt`."""
    text = (ROOT / "constraints.txt").read_text()
    match = re.search(r"^torch==([\w.]+)", text, re.MULTILINE)
    return match.group(1) if match else fail("constraints.txt pins no torch; run `make lock`")


def choose_torch_index() -> str:
    """The index to ask for torch before pip's own sources; empty for none."""
    is_linux_cpu = sys.platform == "linux" and not has_nvidia_gpu()
    return os.environ.get("HEARTH_TORCH_INDEX", PYTORCH_CPU_INDEX if is_linux_cpu else "").strip()


def install_torch(index: str) -> None:
    """Installs the pinned torch, from `index` where that can be had within seconds.

    PyPI's wheel for Linux brings several GB of CUDA libraries, hence first and from elsewhere.
    """
    version = pinned_torch()
    if any(VENV.glob(f"lib/python*/site-packages/torch-{version}[+.-]*dist-info")):
        return
    if index and offers_torch(index, version):
        say(f"installing torch {version} from {without_credentials(index)}")
        source = ["--index-url", index, "--no-deps", "--retries", "1", "--timeout", "30"]
        if pip_install(*source, f"torch=={version}"):
            return
        say("that failed")
    say(f"installing torch {version} from pip's own sources (PyPI's for Linux is several GB)")
    if not pip_install(f"torch=={version}"):
        fail("torch could not be installed; pip's message is above")


def offers_torch(index: str, version: str) -> bool:
    """Whether the index answers quickly and has that version for this Python."""
    say(f"looking for torch {version} at {without_credentials(index)}")
    options = ["--index-url", index, "--retries", "0", "--timeout", "3", "-vv"]
    command = pip_command("index", "versions", "torch", *options)
    try:
        probe = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        say(f"no answer within {PROBE_LIMIT_S:.0f} s")
        return False
    # pip goes on with its other sources when an index does not answer
    if probe.returncode or "Could not fetch URL" in probe.stdout + probe.stderr:
        say("it cannot be reached")
        return False
    offered = re.search(r"^\s*Available versions:(.*)", probe.stdout, re.MULTILINE)
    return bool(offered and re.search(rf"\b{re.escape(version)}(?![\w.])", offered.group(1)))


def without_credentials(url: str) -> str:
    """The address as it may be printed."""
    return re.sub(r"//[^/@]*@", "//", url)


def install_locked(*locks: Path, python: Path = PYTHON, options: Sequence[str] = ()) -> None:
    """Installs exactly what the locks list; a file whose hash is not there is refused."""
    say("installing what is locked; the first time takes a few minutes")
    listed = [word for lock in locks for word in ("--requirement", str(lock))]
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    command += ["--require-hashes", "--no-deps", *options, *listed]
    if subprocess.run(command, check=False).returncode:
        fail("the installation failed; pip's message is above")


def install_hearth(extras: Sequence[str], uses_gpu: bool) -> None:
    """Installs the project, editable; what GPUs need besides comes under the pinned versions."""
    suffix = f"[{','.join(extras)}]" if extras else ""
    say(f"installing hearth{suffix}")
    alone = [] if uses_gpu else ["--no-deps"]
    if not pip_install(*alone, "--no-build-isolation", "--editable", f"{ROOT}{suffix}"):
        fail("the installation failed; pip's message is above")


if __name__ == "__main__":
    main()
