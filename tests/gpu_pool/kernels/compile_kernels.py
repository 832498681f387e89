"""Compiles every kernel for a GPU that need not be there, and reads what it takes of it.

Run as a process of its own (`python -m tests.gpu_pool.kernels.compile_kernels 90`), since kernels
of the tests' process are bound to the interpreter. Prints a table, or with `--json` what it holds.
"""

import argparse
import contextlib
import io
import json
import re
import sys
from dataclasses import asdict, dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_pool.kernels.gpu_traits import get_traits
from tests.gpu_pool.kernels.variants.attention import list_attention
from tests.gpu_pool.kernels.variants.blocks import list_blocks
from tests.gpu_pool.kernels.variants.drawing import list_drawing
from tests.gpu_pool.kernels.variants.elementwise import list_elementwise
from tests.gpu_pool.kernels.variants.experts import list_experts
from tests.gpu_pool.kernels.variants.products import list_products
from tests.gpu_pool.kernels.variants.variant import Variant

_LISTS = (list_elementwise, list_drawing, list_attention, list_experts, list_products, list_blocks)
_PROCESSORS = 100
_REGISTERS = 65536
_MOST_WARPS = {80: 64, 86: 48, 89: 48, 90: 64}
_MOST_PROGRAMS = {80: 32, 86: 16, 89: 24, 90: 32}
_RESERVED_BYTES = 1024
"""Shared memory that every program takes beside its own."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a compiled kernel takes of one processor."""

    kernel: str
    """Its file and its name."""
    variant: str
    num_warps: int
    shared_bytes: int
    registers: int
    """Of one thread."""
    spilled_bytes: int
    programs: int
    """That run on one processor at once."""
    occupancy: float
    """Their warps, as a share of those that a processor holds."""
    is_described: bool
    """Descriptors bring its tiles: hardware of Hopper and later."""
    waits: bool
    """The kernel is launched before its inputs are there, and waits for them itself."""


def list_variants(architecture: int) -> list[Variant]:
    """Every kernel, as large models launch it on GPUs of that generation."""
    traits = get_traits(architecture, _PROCESSORS)
    found = [variant for list_some in _LISTS for variant in list_some(traits)]
    return [v.launched_early(traits) if "DEPENDENT" in v.kernel.arg_names else v for v in found]


def compile_variant(variant: Variant, architecture: int) -> Footprint:
    """What the compiled kernel takes, by triton and by the assembler's own report."""
    kernel = variant.kernel
    # What the launcher finds out at run time: memory is aligned, strides are multiples of 16.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name.endswith(("_ptr", "_stride"))
    }
    signature = {name: variant.find_type(name) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=variant.constants, attrs=aligned)
    triton.knobs.compilation.always_compile = True
    triton.knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(io.StringIO()) as report:
        target = GPUTarget("cuda", architecture, 32)
        compiled = triton.compile(source, target=target, options=variant.options)
    (registers,) = re.findall(r"Used (\d+) registers", report.getvalue())
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report.getvalue())
    num_warps, shared = compiled.metadata.num_warps, compiled.metadata.shared
    programs = _count_programs(architecture, num_warps, shared, int(registers))
    return Footprint(
        kernel=f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}",
        variant=variant.name,
        num_warps=num_warps,
        shared_bytes=shared,
        registers=int(registers),
        spilled_bytes=sum(map(int, spills)),
        programs=programs,
        occupancy=programs * num_warps / _MOST_WARPS[architecture],
        is_described="cp.async.bulk.tensor" in compiled.asm["ptx"],
        waits=bool(compiled.metadata.launch_pdl) and "griddepcontrol.wait" in compiled.asm["ptx"],
    )


def _count_programs(architecture: int, num_warps: int, shared: int, registers: int) -> int:
    """Programs that fit one processor at once. Registers are handed out 256 a warp at a time."""
    whole_bytes = get_traits(architecture, _PROCESSORS).shared_bytes + _RESERVED_BYTES
    warp_registers = -(-registers * 32 // 256) * 256
    return min(
        _MOST_PROGRAMS[architecture],
        _MOST_WARPS[architecture] // num_warps,
        _REGISTERS // warp_registers // num_warps,
        whole_bytes // (shared + _RESERVED_BYTES),
    )


def _write_table(found: list[Footprint], architecture: int) -> str:
    """One row per variant."""
    title = f"sm_{architecture}"
    lines = [f"{title:34} warps  shared KiB  registers  spilled bytes  programs  occupancy"]
    lines += [
        f"{it.variant:34} {it.num_warps:5}  {it.shared_bytes / 1024:10.1f}"
        f"  {it.registers:9}  {it.spilled_bytes:13}  {it.programs:8}  {it.occupancy:9.0%}"
        for it in found
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit status; prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architecture", type=int, choices=sorted(_MOST_WARPS))
    parser.add_argument("--json", action="store_true", help="prints what a program reads")
    parser.add_argument("--few", action="store_true", help="leaves out what lies between others")
    asked = parser.parse_args()
    variants = list_variants(asked.architecture)
    kept = [variant for variant in variants if not (asked.few and variant.is_between)]
    found = [compile_variant(variant, asked.architecture) for variant in kept]
    if asked.json:
        json.dump([asdict(footprint) for footprint in found], sys.stdout)
    else:
        sys.stdout.write(_write_table(found, asked.architecture))
    return 0


if __name__ == "__main__":
    sys.exit(main())
