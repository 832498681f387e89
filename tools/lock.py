"""Writes `constraints.txt` and `locks/` from a fresh resolution, for `make lock`.

`make lock ARGS=torch==2.13.0` keeps torch where it is; `HEARTH_TORCH_INDEX` as in setup_env.py.
`constraints.txt` has exact versions; it leaves out what differs between Linux, macOS and other
CPUs: local versions (`+cpu`) and what only one platform's torch wheel brings. `locks/` has the same
versions with the SHA-256 of every file that the package index offers of them, for all platforms at
once; torch is not there, whose wheels come from PyTorch's own index. Read next: tools/setup_env.py.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # or Linux gets CUDA's several GB
PLATFORM_ONLY = re.compile(r"(cuda|nvidia|triton)\b")  # exact pins of torch's own wheel
OURSELVES = re.compile(r"#|-e\b|hearth\b")
OLDEST_PYTHON = "3.11"
TRITON = "triton>=3.4,<3.7; sys_platform == 'linux' and platform_machine == 'x86_64'"
"""As pyproject.toml has it for its interpreter; torch's wheel for GPUs asks for a newer one."""
UNLOCKED = re.compile(r"(torch|cuda-\w+|nvidia-[\w-]+)==")
LOCKS: dict[str, Sequence[str]] = {
    "build": ("deploy/build-requirements.txt",),
    "run": ("pyproject.toml",),
    "dev": ("pyproject.toml", "--extra", "dev"),
    "gateway": ("deploy/gateway-requirements.txt",),
    "node": ("deploy/node-requirements.txt",),
}
HEADER = """\
# Exact versions of everything `.[dev]` installs, on every platform (a constraint on a package that
# is not installed does nothing). Refresh with `make lock`, then run `make check test`.
"""
LOCK_HEADER = (
    "# Exact versions and the SHA-256 of their files. Written by `make lock`; torch is apart.\n"
)


def main() -> None:
    """Resolves `.[dev]` in a temporary environment and writes the pins, then their hashes."""
    torch = sys.argv[1:] or ["torch"]
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        index = os.environ.get("HEARTH_TORCH_INDEX", PYTORCH_CPU_INDEX)
        source = ["--extra-index-url", index, "--retries", "0"] if index else []
        subprocess.run([*pip, "install", "-qq", "--no-deps", *source, *torch], check=True)
        subprocess.run([*pip, "install", "-qq", "--editable", f"{ROOT}[dev]"], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True)
        lines = pins(frozen.stdout.split("\n"))
        (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
        subprocess.run([*pip, "install", "-qq", "uv"], check=True)
        write_locks([python, "-m", "uv"], Path(folder))


def write_locks(uv: Sequence[str], folder: Path) -> None:
    """Writes `locks/` from `constraints.txt`; `folder` is for what nobody keeps."""
    overrides = folder / "overrides.txt"
    overrides.write_text(TRITON + "\n")
    (ROOT / "locks").mkdir(exist_ok=True)
    for name, sources in LOCKS.items():
        lock = ROOT / "locks" / f"{name}.txt"
        whole = folder / f"{name}.txt"
        whole.write_text(lock.read_text() if lock.exists() else "")  # what is pinned stays
        options = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
        options += ["--no-header", "--no-annotate", "--quiet", "--constraint", "constraints.txt"]
        options += ["--override", str(overrides), "--output-file", str(whole)]
        subprocess.run([*uv, "pip", "compile", *sources, *options], check=True, cwd=ROOT)
        lock.write_text(LOCK_HEADER + drop_unlocked(whole.read_text()))


def drop_unlocked(text: str) -> str:
    """A lock without torch and what its wheel for GPUs brings."""
    entries = re.split(r"\n(?=\S)", text.strip())
    return "\n".join(entry for entry in entries if not UNLOCKED.match(entry)) + "\n"


def pins(frozen: Iterable[str]) -> list[str]:
    """The lines of `pip freeze` that hold on every platform, without local versions."""
    requirements = (line.strip().partition("+")[0] for line in frozen)
    dropped = (PLATFORM_ONLY, OURSELVES)
    return sorted(
        (r for r in requirements if r and not any(p.match(r) for p in dropped)), key=str.lower
    )


if __name__ == "__main__":
    main()
