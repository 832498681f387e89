"""What vector instructions a CPU has, from the best to none, and how to compile for them."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CPU_INFO: Final = Path("/proc/cpuinfo")
_AVX512_FLAGS: Final = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
_AVX512_OPTIONS: Final = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")


@dataclass(frozen=True, slots=True)
class Level:
    """A set of instructions. A row's result is the same at all row counts within a level, and
    differs between levels in its last bits."""

    name: str
    flags: frozenset[str]
    """By which Linux names what is needed."""
    options: tuple[str, ...]
    """Of the compiler."""


LEVELS: Final = (
    Level(
        "amx",
        _AVX512_FLAGS | {"avx512_bf16", "amx_tile", "amx_bf16"},
        (*_AVX512_OPTIONS, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    ),
    Level("avx512-bf16", _AVX512_FLAGS | {"avx512_bf16"}, (*_AVX512_OPTIONS, "-mavx512bf16")),
    Level("avx512", _AVX512_FLAGS, _AVX512_OPTIONS),
    Level("avx2", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    Level("plain", frozenset(), ()),
)
"""Best first."""


def list_levels(flags: frozenset[str], most: Level = LEVELS[0]) -> tuple[Level, ...]:
    """What a CPU with these flags can run up to `most`, best first."""
    return tuple(level for level in LEVELS[LEVELS.index(most) :] if level.flags <= flags)


def find_level(name: str) -> Level:
    """The level of that name; the best of all for another."""
    return next((level for level in LEVELS if level.name == name), LEVELS[0])


def read_cpu_flags(cpu_info: Path = CPU_INFO) -> frozenset[str] | None:
    """The flags of this machine's first CPU; None where it is no x86-64 under Linux."""
    if platform.machine() != "x86_64" or not cpu_info.is_file():
        return None
    for line in cpu_info.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return frozenset(flags.split())
    return None
