"""Brings the small packages that a GPU machine without a network lacks.

`make gpu-wheels` has fetched them. For anything else but the benchmark, such as `make gpu`:

    export PYTHONPATH=$(python3 -m benchmarks.gpu.wheels)

Needs the standard library alone. Read next: `__main__`.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

WHEELS: Final = Path(".gpu-wheels")
_SITE: Final = Path(".cache") / f"gpu-site-{sys.version_info.major}.{sys.version_info.minor}"
_SIGN: Final = "msgspec"
"""Where this is missing, so are others."""


def install_wheels(wheels: Path = WHEELS, site: Path = _SITE, sign: str = _SIGN) -> Path | None:
    """Puts the wheels on the path of this process and of its children, unless `sign` is there.

    Returns the folder that was added. Raises: `SystemExit` where they do not install.
    """
    if find_spec(sign) is not None:
        return None
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    if not found:
        sys.exit(
            f"{sign} is missing and {wheels} is empty: `make gpu-wheels` where there is a network"
        )
    site = site.resolve()
    if not (site / sign).exists():
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), *found]
        if subprocess.run(command, check=False).returncode:
            sys.exit(
                f"the wheels in {wheels} do not install here; they are for Python 3.12 on x86-64"
            )
    sys.path.insert(0, str(site))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{site}{os.pathsep}{before}" if before else str(site)
    return site


if __name__ == "__main__":
    install_wheels()
    print(os.environ.get("PYTHONPATH", ""))
