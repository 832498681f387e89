"""What the system says of this process's memory."""

import re
from pathlib import Path


def read_resident_bytes() -> int:
    """Memory that this process has mapped and holds, files in memory that it has not left out."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Rss:\s+(\d+) kB", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024
