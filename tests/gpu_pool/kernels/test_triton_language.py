"""Where triton is read, and where a core does without it."""

import subprocess
import sys

import pytest
import torch

from gpu_pool.kernels.triton_language import HAS_TRITON

CODE = """
import sys
{first}
import gpu_pool.core_executor
from gpu_pool.kernels.rms_norm import _rms_norm_kernel
print("triton" in sys.modules)
try:
    _rms_norm_kernel[(1,)]
except RuntimeError as error:
    print(error)
"""
pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="triton exists for Linux only"),
    pytest.mark.skipif(
        torch.version.cuda is not None or torch.version.hip is not None,
        reason="this torch can launch kernels, so that triton is read by all",
    ),
]


def run(first: str = "") -> list[str]:
    """What a process prints that imports what a core needs; `first` comes before that."""
    command = [sys.executable, "-c", CODE.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_core_on_a_cpu_does_without_and_says_so_when_a_kernel_is_launched() -> None:
    has_triton, refusal = run()
    assert has_triton == "False"
    assert "_rms_norm_kernel" in refusal


def test_who_interprets_or_compiles_kernels_has_it() -> None:
    assert run("import triton") == ["True"]
