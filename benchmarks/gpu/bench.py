"""What a section runs on: the device, or a CPU that stands for it in a rehearsal.

Must not know any section. Read next: `section`, `sections`.
"""

import gc
import platform
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import torch

from benchmarks.gpu.shapes import SHAPES, TINY, Shapes

T = TypeVar("T")
OURS: Final = "hearth"


class NotHere(Exception):
    """The section, or a part of it, cannot run here; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where figures come from. A rehearsal runs all the code on a fraction of the load."""

    device: str
    is_rehearsal: bool
    limit_s: float
    """What a section may take in all."""
    price_per_hour: float
    """Of the machine, in any one currency."""
    scratch: Path | None = None
    """For what has to be on a drive; None: the system's folder for temporary files."""
    notes: list[str] = field(default_factory=list[str])
    """What was left out and why, for the report."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.device)

    @property
    def left_s(self) -> float:
        """Seconds until the section is ended."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def pick(self, full: T, rehearsed: T) -> T:
        """The one for here."""
        return rehearsed if self.is_rehearsal else full

    def find_shapes(self, name: str) -> Shapes:
        """A model's shapes; in a rehearsal those of a tiny one."""
        return SHAPES[TINY if self.is_rehearsal else name]

    def require_gpu(self, what: str) -> None:
        """Raises: `NotHere` without a GPU."""
        if self.device != "cuda":
            raise NotHere(f"{what} needs an NVIDIA GPU")

    @contextmanager
    def optional(self) -> Generator[None]:
        """What cannot run here becomes a note, and the section goes on."""
        try:
            yield
        except NotHere as reason:
            self.notes.append(str(reason))

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def free_memory(self) -> None:
        """Gives back what torch keeps of dropped tensors, and counts peaks anew."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def describe_hardware() -> str:
    """The GPU's name, memory and driver, as the driver's own tool has them; else the processor."""
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return platform.machine()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return done.stdout.strip().partition("\n")[0] or name


def create_command(module: str, *arguments: str) -> list[str]:
    """How another process of this benchmark is started."""
    return [sys.executable, "-m", module, *arguments]
