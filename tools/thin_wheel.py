"""Leaves top-level packages out of a wheel: python tools/thin_wheel.py WHEEL PACKAGE...

NIXL's wheel has three builds of a library for experts in parallel, more than half of its size, that
nothing here uses; without them it travels to a machine that has no network. Needs the standard
library alone.
"""

import sys
import zipfile
from collections.abc import Collection
from pathlib import Path


def thin(wheel: Path, packages: Collection[str]) -> None:
    """Writes `wheel` anew without `packages`, which its list of files names no more.

    Raises: `ValueError` when it has none of them.
    """
    thinned = wheel.with_suffix(".thinned")
    num_left_out = 0
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(thinned, "w") as rest:
        for entry in whole.infolist():
            content = whole.read(entry)
            if entry.filename.partition("/")[0] in packages:
                num_left_out += 1
                continue
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                kept = [line for line in lines if line.partition("/")[0] not in packages]
                content = "".join(kept).encode()
            rest.writestr(entry, content)
    if not num_left_out:
        thinned.unlink()
        raise ValueError(f"{wheel.name} has nothing of {', '.join(packages)}")
    thinned.replace(wheel)


if __name__ == "__main__":
    thin(Path(sys.argv[1]), sys.argv[2:])
