"""Compiles every kernel for a GPU that need not be there, and reads what it takes of it.

Run as a process of its own (`python -m tests.gpu_pool.kernels.compile_kernels 90`), since kernels
of the tests' process are bound to the interpreter. Prints a JSON object: kernel and variant to
shared bytes, registers and spilled bytes.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_pool.kernels import (
    add_rms_norm,
    gumbel_argmax,
    kv_write,
    paged_attention,
    rms_norm,
    rotary,
    silu_mul,
    split_decode,
)

ARCHITECTURES = (80, 86, 89, 90)
_FLOATS = ("eps", "scale", "soft_cap")
_INTEGER_POINTERS = (
    "tables_ptr",
    "starts_ptr",
    "lengths_ptr",
    "tile_sequences_ptr",
    "tile_firsts_ptr",
)
_POINTER_TYPES = {
    **dict.fromkeys(_INTEGER_POINTERS, "*i32"),
    "slot_ids_ptr": "*i64",
    "keys_ptr": "*i32",
    "winner_ptr": "*i32",
    "mixed_ptr": "*fp32",
    "best_ptr": "*fp32",
    "total_ptr": "*fp32",
    "logits_ptr": "*fp32",
    "largest_ptr": "*fp32",
    "temperatures_ptr": "*fp32",
    "cutoffs_ptr": "*fp32",
    "sinks_ptr": "*fp32",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the constants and launch options of a shape that is served."""

    name: str
    kernel: Any
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, int] = field(default_factory=dict[str, int])


def list_variants() -> list[Variant]:
    """Every kernel, as large models launch it."""
    attention = {
        "KV_HEADS": 8,
        "BLOCK_SIZE": 16,
        "IS_CHUNKED": False,
        "HAS_CAP": False,
        "PRECISION": "tf32",
    }
    found = [
        Variant("rms_norm", rms_norm._rms_norm_kernel, {"BLOCK": 8192}, {"num_warps": 16}),
        Variant(
            "add_rms_norm", add_rms_norm._add_rms_norm_kernel, {"BLOCK": 8192}, {"num_warps": 16}
        ),
        Variant("silu_mul", silu_mul._silu_mul_kernel, {"BLOCK": 1024}),
        Variant("rotary", rotary._rotary_kernel, {"HALF": 64, "BLOCK": 64}, {"num_warps": 1}),
        Variant("kv_write", kv_write._kv_write_kernel, {"BLOCK": 1024}),
        Variant(
            "gumbel_argmax",
            gumbel_argmax._race_kernel,
            {"PARTS": 19, "PART": 8192, "BLOCK": 1024},
        ),
        Variant(
            "join_splits",
            split_decode._join_splits_kernel,
            {
                "HEADS": 32,
                "HEAD_DIM": 128,
                "SPLITS": 64,
                "SPLIT_KEYS": 512,
                "PADDED_DIM": 128,
                "IS_CHUNKED": False,
                "HAS_SINKS": True,
            },
            {"num_warps": 2},
        ),
    ]
    for head_dim in (64, 128):
        sizes = {**attention, "HEAD_DIM": head_dim, "PADDED_DIM": head_dim, "HEADS": 32}
        decode = {**sizes, "SPLITS": 64, "SPLIT_KEYS": 512, "ROWS": 16, "KEYS": split_decode.KEYS}
        found.append(
            Variant(
                f"split_decode/{head_dim}",
                split_decode._split_decode_kernel,
                decode,
                {"num_stages": 3},
            )
        )
        for rows in (16, 64):
            tiled = {
                **sizes,
                "TILE_TOKENS": rows // 4,
                "ROWS": rows,
                "KEYS": paged_attention.KEYS,
                "HAS_SINKS": True,
            }
            found.append(
                Variant(
                    f"paged_attention/{head_dim}/{rows}",
                    paged_attention._paged_attention_kernel,
                    tiled,
                    {"num_warps": paged_attention.choose_attention_warps(rows), "num_stages": 3},
                )
            )
    return found


def compile_variant(variant: Variant, architecture: int) -> dict[str, int]:
    """What the compiled kernel takes: `shared` bytes, `registers`, and `spilled` bytes."""
    signature = {
        name: "constexpr" if name in variant.constants else _type_of(name)
        for name in variant.kernel.arg_names
    }
    # What the launcher finds out at run time: memory is aligned, strides are multiples of 16.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(variant.kernel.arg_names)
        if name.endswith(("_ptr", "_stride"))
    }
    source = ASTSource(
        fn=variant.kernel, signature=signature, constexprs=variant.constants, attrs=aligned
    )
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options=variant.options)
    registers, spilled = _read_resources(compiled.asm["ptx"], architecture)
    return {"shared": compiled.metadata.shared, "registers": registers, "spilled": spilled}


def _type_of(name: str) -> str:
    if name.endswith("_ptr"):
        return _POINTER_TYPES.get(name, "*bf16")
    return "fp32" if name in _FLOATS else "i32"


def _read_resources(ptx: str, architecture: int) -> tuple[int, int]:
    """Registers and spilled bytes of the one kernel in `ptx`, by the assembler's own report."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    name = f"sm_{architecture}a" if architecture == 90 else f"sm_{architecture}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(tool), "-v", "--gpu-name", name, file.name, "-o", "/dev/null"]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    return int(registers), sum(map(int, spills))


if __name__ == "__main__":
    asked = int(sys.argv[1])
    json.dump({v.name: compile_variant(v, asked) for v in list_variants()}, sys.stdout)
