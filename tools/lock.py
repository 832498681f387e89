"""Writes `constraints.txt` from a fresh resolution of `.[dev]`, for `make lock`.

`make lock ARGS=torch==2.13.0` keeps torch where it is; `HEARTH_TORCH_INDEX` as in setup_env.py.
Owns what is left out so that the file holds on Linux, macOS and other CPUs alike: local versions
(`+cpu`) and what only one platform's torch wheel brings. Read next: tools/setup_env.py.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # or Linux gets CUDA's several GB
PLATFORM_ONLY = re.compile(r"(cuda|nvidia|triton)\b")  # exact pins of torch's own wheel
OURSELVES = re.compile(r"#|-e\b|hearth\b")
HEADER = """\
# Exact versions of everything `.[dev]` installs, on every platform (a constraint on a package that
# is not installed does nothing). Refresh with `make lock`, then run `make check test`.
"""


def main() -> None:
    """Resolves `.[dev]` in a temporary environment and writes the pins."""
    torch = sys.argv[1:] or ["torch"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        index = os.environ.get("HEARTH_TORCH_INDEX", PYTORCH_CPU_INDEX)
        source = ["--extra-index-url", index, "--retries", "0"] if index else []
        subprocess.run([*pip, "install", "-qq", "--no-deps", *source, *torch], check=True)
        subprocess.run([*pip, "install", "-qq", "--editable", f"{ROOT}[dev]"], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True)
    (ROOT / "constraints.txt").write_text(
        HEADER + "\n".join(pins(frozen.stdout.split("\n"))) + "\n"
    )


def pins(frozen: Iterable[str]) -> list[str]:
    """The lines of `pip freeze` that hold on every platform, without local versions."""
    requirements = (line.strip().partition("+")[0] for line in frozen)
    dropped = (PLATFORM_ONLY, OURSELVES)
    return sorted(
        (r for r in requirements if r and not any(p.match(r) for p in dropped)), key=str.lower
    )


if __name__ == "__main__":
    main()
