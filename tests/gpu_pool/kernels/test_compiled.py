"""Every kernel compiles for the GPUs people have, fits their shared memory and spills nothing."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_pool.kernels.triton_cases import needs_triton

pytestmark = [needs_triton, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
# Of one block, in bytes, by compute capability: A100, consumer Ampere, Ada, Hopper.
SHARED_LIMITS = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}

LAUNCHED_EARLY = {
    "add_rms_norm",
    "cutoffs",
    "draw",
    "norm_rotate_write",
    "rms_norm",
    "scores",
    "silu_mul",
    "small_linear",
    "split_decode",
}

DESCRIBED = "descriptor_linear._descriptor_linear_kernel"
"""For Hopper alone: its tiles are brought by descriptors."""


def compile_all(architecture: int, folder: Path, *options: str) -> list[dict[str, Any]]:
    """What each variant takes on `architecture`, from a process without the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    module = "tests.gpu_pool.kernels.compile_kernels"
    command = [sys.executable, "-m", module, str(architecture), "--json", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find_kernels(sources: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Functions for the GPU, as file and name: those launched, and those that nothing uses."""
    jitted: set[tuple[str, str]] = set()
    launched: set[tuple[str, str]] = set()
    used: set[str] = set()
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and "jit" in map(ast.unparse, node.decorator_list):
                jitted.add((file, node.name))
            elif isinstance(node, ast.Subscript):
                launched.add((file, ast.unparse(node.value)))
            elif isinstance(node, ast.Name):
                used.add(node.id)
    unused = {(file, name) for file, name in jitted if name not in used}
    return {".".join(pair) for pair in jitted & launched}, {".".join(pair) for pair in unused}


def assert_sound_and_whole(found: list[dict[str, Any]], architecture: int) -> None:
    """Nothing is too large, nothing spills, and no kernel is left out."""
    limit = SHARED_LIMITS[architecture]
    assert not {it["variant"] for it in found if it["shared_bytes"] > limit}
    assert not {it["variant"] for it in found if it["spilled_bytes"] > 0}
    assert not {it["variant"] for it in found if it["programs"] < 1}
    files = (ROOT / "gpu_pool/kernels").glob("*.py")
    launched, unused = find_kernels({path.stem: path.read_text() for path in files})
    expected = launched if architecture >= 90 else launched - {DESCRIBED}
    assert expected == {it["kernel"] for it in found}, "each has a variant in variants/"
    described = {it["kernel"] for it in found if it["is_described"]}
    assert described == ({DESCRIBED} if architecture >= 90 else set())
    assert not unused
    waiting = {it["kernel"].partition(".")[0] for it in found if it["waits"]}
    assert waiting == (LAUNCHED_EARLY if architecture >= 90 else set())


def test_kernels_fit_do_not_spill_and_none_is_left_out(tmp_path: Path) -> None:
    """On what they are made for; all others, and sizes between, are a long proof."""
    assert_sound_and_whole(compile_all(90, tmp_path, "--few"), 90)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", SHARED_LIMITS)
def test_on_every_kind_sizes_between_fit_too(architecture: int, tmp_path: Path) -> None:
    assert_sound_and_whole(compile_all(architecture, tmp_path), architecture)


def test_kernels_are_told_from_what_they_call_and_from_what_nothing_uses() -> None:
    """The control: a kernel without a variant is seen."""
    helper = "@jit\ndef _half(x):\n    return x / 2\n"
    kernel = "@jit\ndef _kernel(x_ptr):\n    _half(x_ptr)\ndef run(x):\n    _kernel[(1,)](x)\n"
    dead = "@jit\ndef _old_kernel(x_ptr):\n    pass\n"
    found = find_kernels({"one": helper + kernel, "other": dead + helper})
    assert found == ({"one._kernel"}, {"other._old_kernel"})
