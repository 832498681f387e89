"""From the start of a process to a model's first token, part by part.

Read next: `first_token`.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.gpu.bench import OURS, Bench, NotHere, create_command
from benchmarks.gpu.random_checkpoint import write_random_checkpoint
from benchmarks.gpu.shapes import LLAMA_8B, QWEN_SMALL
from benchmarks.harness import Figure, summarise
from benchmarks.standby.bench_loader import drop_from_cache

_CONTEXT: Final = 4096
_TRITON_CACHE: Final = "TRITON_CACHE_DIR"


def measure_start(bench: Bench) -> list[Figure]:
    """0.6B shapes: kernels to be compiled (x = 0), then again (x = 1)."""
    return _measure(bench, QWEN_SMALL, 2 << 30)


def measure_large_start(bench: Bench) -> list[Figure]:
    """8B shapes, the same; the file is dropped from the page cache first."""
    return _measure(bench, LLAMA_8B, 18 << 30)


def require_room(bench: Bench, num_bytes: int) -> None:
    """Raises: `NotHere` where the drive has no room for so many bytes."""
    folder = bench.scratch or Path(tempfile.gettempdir())
    if not bench.is_rehearsal and shutil.disk_usage(folder).free < num_bytes:
        raise NotHere(f"{num_bytes >> 30} GiB do not fit on the drive of {folder}; use --scratch")


def _measure(bench: Bench, name: str, num_bytes: int) -> list[Figure]:
    """Two starts."""
    require_room(bench, num_bytes)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        model, cache = Path(folder) / "model", Path(folder) / "kernels"
        model.mkdir()
        write_random_checkpoint(model, bench.find_shapes(name), bench.pick(_CONTEXT, 512))
        os.sync()
        for turn in range(2):
            drop_from_cache(model / "model.safetensors")
            figures += _start(bench, f"{name} start", model, cache, turn)
    return figures


def _start(bench: Bench, what: str, model: Path, cache: Path, turn: int) -> list[Figure]:
    """One process, the seconds of each part and of all."""
    command = create_command("benchmarks.gpu.first_token", str(model), bench.device)
    began_s = time.time()
    done = subprocess.run(
        command,
        env=os.environ | {_TRITON_CACHE: str(cache)},
        capture_output=True,
        text=True,
        timeout=max(1.0, bench.left_s),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    marks = json.loads(done.stdout.splitlines()[-1])["marks"]
    figures: list[Figure] = []
    before_s = began_s
    for part, mark_s in marks.items():
        figures.append(summarise(what, OURS, part, "s", turn, [mark_s - before_s]))
        before_s = mark_s
    whole = marks["first token"] - began_s
    figures.append(summarise(what, OURS, "process to first token", "s", turn, [whole]))
    return figures
