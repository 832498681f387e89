"""What helps to tune kernels tries itself on a CPU, so that it does not rot."""

import os
import subprocess
import sys

import pytest

from benchmarks.gpu.tuning.decode import cut_evenly
from benchmarks.gpu.tuning.trial import Trial, list_results
from gpu_pool.kernels.split_plan import MAX_SPLITS
from tests.gpu_pool.kernels.triton_cases import needs_triton


def run_tool(module: str, *options: str) -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gpu.{module}", *options],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
@pytest.mark.timeout(250)
def test_every_kernel_is_tuned_beside_what_is_chosen_today() -> None:
    lines = run_tool("tuning", "decode", "prefill", "products").splitlines()
    assert {line.split()[0] for line in lines} == {"decode", "prefill", "product"}
    assert all("us chosen" in line.partition(" | best: ")[0] for line in lines)


@pytest.mark.timeout(120)
def test_the_profile_tells_of_the_run() -> None:
    options = ["--model", "tiny", "--prompt", "40", "--tokens", "8", "--warm", "1"]
    assert " 8 tokens" in run_tool("kernel_times", *options)


def test_what_a_gpu_has_no_room_for_is_left_out_and_what_is_wrong_is_not() -> None:
    class OutOfResources(Exception):
        """As triton names it."""

    def refuse() -> None:
        raise OutOfResources

    def fail() -> None:
        raise ZeroDivisionError

    fits = Trial("a case", "small", [lambda: None])
    (line,) = list_results([fits, Trial("a case", "large", [refuse])])
    assert "small" in line
    assert "large" not in line
    with pytest.raises(ZeroDivisionError):
        list_results([Trial("a case", "wrong", [fail])])


@pytest.mark.parametrize("length", [1, 64, 65, 64 * MAX_SPLITS + 1])
def test_even_cuts_cover_every_context(length: int) -> None:
    plan = cut_evenly(3, length, 64)
    bounds = plan.bounds_B.tolist()
    for sequence in range(3):
        items = plan.items_Z3[bounds[sequence] : bounds[sequence + 1]].tolist()
        assert [item[0] for item in items] == [sequence] * len(items)
        assert [0, *(item[2] for item in items)] == [*(item[1] for item in items), length]
        assert len(items) <= MAX_SPLITS
