"""How much memory this process may still take: the machine's, and that of its control groups.

Source: Linux, `Documentation/filesystems/proc.rst` (`MemAvailable`) and
`Documentation/admin-guide/cgroup-v2.rst` (`memory.max`). Read next: `control_groups`.
"""

import re
from pathlib import Path
from typing import Final

from gpu_pool.control_groups import CGROUP_ROOT, OWN_CGROUPS, list_folders

MEMORY_INFO: Final = Path("/proc/meminfo")
_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of both versions: a limit, what is used, and what of it the system gives up when asked to."""


def read_free_bytes(
    root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS, memory_info: Path = MEMORY_INFO
) -> int:
    """Bytes that could be taken without anything being killed; 0 where nobody says so."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", _read(memory_info), re.MULTILINE)
    free = [int(found[1]) << 10 if found else 0]
    for folder in list_folders("memory", root, own):
        free.extend(_list_free(folder))
    return max(0, min(free))


def _list_free(folder: Path) -> list[int]:
    """What one group leaves, if it has a limit."""
    free: list[int] = []
    for limit, usage, given_up in _FILES:
        limit_bytes, used_bytes = _read(folder / limit).strip(), _read(folder / usage).strip()
        if limit_bytes.isdecimal() and used_bytes.isdecimal():
            found = re.search(rf"^{given_up} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            free.append(int(limit_bytes) - int(used_bytes) + (int(found[1]) if found else 0))
    return free


def _read(path: Path) -> str:
    """A file's text; nothing where there is no such file."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
