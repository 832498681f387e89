"""Where the limits of this process's control groups stand, in both versions of them.

Source: Linux, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/cgroups.rst`. Must not know
what is limited. Read next: `cpu_share`, `memory_room`.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")


def list_folders(controller: str, root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> list[Path]:
    """The folders of this process's groups that may limit what `controller` is for, and of all
    groups above them; none without control groups.
    """
    try:
        groups = own.read_text(encoding="ascii")
    except OSError:
        return []
    return [folder for line in groups.splitlines() for folder in _list(controller, root, line)]


def _list(controller: str, root: Path, line: str) -> Iterator[Path]:
    """Those of one line of `/proc/self/cgroup`.

    In a container the path may be the host's, of which only the root can be seen.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and controller not in controllers.split(","):
        return
    top = root / controllers if controllers else root
    inner = PurePosixPath(path.lstrip("/"))
    if ".." not in inner.parts:
        yield top / inner
        yield from (top / parent for parent in inner.parents)
    else:
        yield top
