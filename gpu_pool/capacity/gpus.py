"""GPUs by the words of the command line: `8xH100-80G`."""

import re
from dataclasses import dataclass
from typing import Final

_PATTERN: Final = re.compile(r"(?:(\d+)x)?([A-Za-z][A-Za-z0-9_]*)-(\d+)G")
_MIB: Final = 1 << 20
_REPORTED_MIB: Final = {("H100", 80): 81_559, ("H200", 141): 143_771}
"""What the driver reports, where we know it."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """Some GPUs of one kind."""

    count: int
    name: str
    memory_bytes: int
    """Of each."""


def parse_gpus(words: str) -> Gpus:
    """The GPUs that `words` name. Other kinds than the known have the decimal gigabytes they say.

    Raises: `ValueError` telling the form.
    """
    found = _PATTERN.fullmatch(words.strip())
    count, size = (int(found[1] or 1), int(found[3])) if found else (0, 0)
    if found is None or not 0 < count <= 1024 or size == 0:
        raise ValueError(f"GPUs are written like 8xH100-80G or H200-141G, not `{words}`.")
    name = found[2].upper()
    reported = _REPORTED_MIB.get((name, size))
    memory_bytes = size * 10**9 if reported is None else reported * _MIB
    return Gpus(count, f"{name}-{size}G", memory_bytes)
