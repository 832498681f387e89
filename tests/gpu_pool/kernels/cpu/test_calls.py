"""What Python fills in lies where C reads it: the compiler is told every size and every offset."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_pool.kernels.cpu import calls

SOURCES = Path(calls.__file__).parent
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "Attention": calls.AttentionCall,
    "Turn": calls.TurnCall,
    "Matrix": calls.MatrixCall,
    "Layer": calls.LayerCall,
    "Rotation": calls.RotationCall,
    "Step": calls.StepCall,
}


def claim_layout(name: str, call: type[ctypes.Structure]) -> list[str]:
    """What must hold of the C side's struct, in C++."""
    fields = [field for field, *_ in call._fields_]
    return [
        f"static_assert(sizeof({name}) == {ctypes.sizeof(call)});",
        *[
            f"static_assert(offsetof({name}, {field}) == {getattr(call, field).offset});"
            for field in fields
        ],
    ]


def compile_claims(claims: list[str]) -> str:
    """What the compiler has against them; nothing where all hold."""
    source = "\n".join(['#include "layers.cpp"', "#include <cstddef>", *claims])
    command = ["g++", "-std=c++17", "-fopenmp", "-Wno-psabi", "-fsyntax-only"]
    compiled = subprocess.run(
        [*command, f"-I{SOURCES}", "-x", "c++", "-"],
        input=source,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return compiled.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_calls_lie_as_the_compiler_lays_them_out() -> None:
    claims = [claim for each in STRUCTS.items() for claim in claim_layout(*each)]
    assert compile_claims(claims) == ""
    swapped = [claim.replace("Layer, qkv)", "Layer, o)") for claim in claims]
    assert "static assertion failed" in compile_claims(swapped)
