"""Every kernel compiles for the GPUs people have, fits their shared memory and spills nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_pool.kernels.triton_cases import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
# Of one block, in bytes, by compute capability: A100, consumer Ampere, Ada, Hopper.
SHARED_LIMITS = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}


def compile_all(architecture: int) -> dict[str, dict[str, int]]:
    """What each kernel takes on `architecture`, from a process without the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu_pool.kernels.compile_kernels", str(architecture)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("architecture", SHARED_LIMITS)
def test_kernels_fit_and_do_not_spill(architecture: int) -> None:
    resources = compile_all(architecture)
    assert len(resources) >= 13
    limit = SHARED_LIMITS[architecture]
    too_large = {name: r for name, r in resources.items() if r["shared"] > limit}
    spilling = {name: r for name, r in resources.items() if r["spilled"] > 0}
    assert not too_large
    assert not spilling
