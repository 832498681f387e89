"""Launch settings of the kernels that matter most, tried one beside the other on this GPU.

python -m benchmarks.gpu.tune decode prefill product

Prints the best of each case and what is chosen today. Settings are compiled by several processes
first. Not a section: what is found here goes into each kernel's `choose_…_launch`.
Units: microseconds; TFLOP/s and GB/s of what must be read. Read next: `kernels`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Final

from benchmarks.gpu.wheels import install_wheels

install_wheels()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from benchmarks.gpu.timing import measure_chain_ms  # noqa: E402
from gpu_pool.kernels import paged_attention, small_linear, split_decode, split_plan  # noqa: E402
from gpu_pool.kernels.gpu_traits import find_traits  # noqa: E402
from gpu_pool.kernels.small_linear_table import SMALL_LINEAR  # noqa: E402

_BLOCK: Final = 16
_DECODES: Final = (
    (32, 8, 1, 1024),
    (32, 8, 1, 32768),
    (32, 8, 8, 4096),
    (32, 8, 64, 1024),
    (32, 8, 256, 600),
    (16, 8, 1, 1024),
    (16, 8, 256, 850),
)
"""Query heads, KV heads, sequences, context."""
_PREFILLS: Final = ((1024, 0), (8192, 0), (32768, 0), (2048, 14336))
"""New tokens, cached ones."""
_ROWS: Final = (1, 8)
_CACHE_BYTES: Final = 200 << 20
"""So much other weight is read between two products with the same one."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kinds", nargs="+", choices=("decode", "prefill", "product"))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    asked = parser.parse_args()
    works = [work for kind in asked.kinds for work in _KINDS[kind]()]
    if asked.part is not None:
        for _, _, call in works[int(asked.part) :: asked.processes]:
            _try(call)
        return 0
    _compile(asked)
    best: dict[str, list[tuple[float, str]]] = {}
    for case, name, call in works:
        if _try(call):
            best.setdefault(case, []).append((_time_us(case, call), name))
    for case, found in best.items():
        chosen = " ".join(f"[{us:.1f} us {name}]" for us, name in found if name.startswith("="))
        others = "; ".join(f"{us:.1f} {name}" for us, name in sorted(found)[:6])
        print(f"{case}: {chosen} best {others}")
    return 0


def _compile(asked: argparse.Namespace) -> None:
    """Fills triton's cache."""
    command = [sys.executable, "-m", "benchmarks.gpu.tune", *asked.kinds]
    command += ["--processes", str(asked.processes), "--part"]
    processes = [subprocess.Popen([*command, str(part)]) for part in range(asked.processes)]
    for process in processes:
        process.wait()


Call = Callable[[], object]
Work = tuple[str, str, Call]
_tensors: dict[object, tuple[Tensor, ...]] = {}


def _try(call: Call) -> bool:
    """False where the setting does not fit this GPU."""
    try:
        call()
    except Exception as error:
        if "out of resource" not in str(error):
            print("failed", type(error).__name__, str(error)[:200])
        return False
    torch.cuda.synchronize()
    return True


def _time_us(case: str, call: Call) -> float:
    """Microseconds of one call of a chain; the fastest of the samples."""
    num_calls = 32 if case.startswith("decode") else 8
    return 1000 * min(measure_chain_ms([call] * num_calls, 4))


def _list_decodes() -> Iterator[Work]:
    """Split attention: keys of a split, of a product, warps, stages, programs of a processor."""
    device = torch.device("cuda")
    traits = find_traits(device)
    for heads, kv_heads, batch, length in _DECODES:
        case = f"decode {heads}/{kv_heads} x {batch} at {length}"

        def attend(
            launch: split_decode.SplitLaunch | None,
            split_keys: int,
            sizes: tuple[int, int, int, int] = (heads, kv_heads, batch, length),
        ) -> None:
            q, slots, tables, lengths = _create_decode(*sizes)
            _, kv_heads, batch, length = sizes
            num_layers = len(slots) // (batch * -(-length // _BLOCK) * _BLOCK)
            _turns[sizes] = layer = (_turns.get(sizes, -1) + 1) % num_layers
            split_plan.MIN_SPLIT_KEYS = split_keys
            key = ("plan", sizes, split_keys)
            if key not in _tensors:
                plan = split_plan.plan_splits(lengths, length)
                _tensors[key] = (plan.bounds_B, plan.items_Z3)
            plan = split_plan.SplitPlan(*_tensors[key])
            layout = paged_attention.PagedLayout(layer, num_layers, _BLOCK, kv_heads, 128**-0.5)
            split_decode.split_decode_triton(q, slots, tables, plan, layout, launch)

        chosen = split_decode.choose_split_decode_launch(traits, 16, 128, 2)
        yield case, f"= 256 {astuple(chosen)}", lambda a=attend: a(None, 256)
        for split_keys in (64, 128, 256):
            for keys, warps, stages, programs in (
                (32, 4, 3, 4), (32, 4, 4, 4), (64, 4, 2, 3), (64, 4, 3, 2), (64, 4, 3, 3),
                (64, 8, 3, 2), (64, 4, 4, 2), (64, 8, 2, 3), (64, 4, 5, 1), (128, 4, 2, 2),
                (128, 8, 2, 2), (128, 8, 3, 1), (32, 2, 3, 6), (32, 2, 4, 5), (64, 2, 3, 3),
            ):  # fmt: skip
                if keys > split_keys:
                    continue
                launch = split_decode.SplitLaunch(
                    keys, warps, stages, programs * traits.num_processors
                )
                name = f"{split_keys} {keys} w{warps} s{stages} p{programs}"
                yield case, name, lambda a=attend, n=launch, k=split_keys: a(n, k)


def _create_decode(heads: int, kv_heads: int, batch: int, length: int) -> tuple[Tensor, ...]:
    """Queries, slots, tables and lengths."""
    key = ("decode", heads, kv_heads, batch, length)
    if key not in _tensors:
        blocks = -(-length // _BLOCK)
        device = "cuda"
        num_bytes = 4 * kv_heads * 128 * batch * blocks * _BLOCK
        num_layers = min(32, -(-_CACHE_BYTES // num_bytes))
        _tensors[key] = (
            torch.randn(batch, heads, 128, device=device, dtype=torch.bfloat16),
            torch.randn(
                num_layers * batch * blocks * _BLOCK,
                2 * kv_heads * 128,
                device=device,
                dtype=torch.bfloat16,
            ),
            torch.randperm(batch * blocks, device=device).view(batch, -1).int(),
            torch.full((batch,), length, dtype=torch.int32, device=device),
        )
    return _tensors[key]


def _list_prefills() -> Iterator[Work]:
    """Tiles: rows, keys, warps, stages; and torch's own attention."""
    for heads, kv_heads in ((32, 8),):
        for num_new, num_cached in _PREFILLS:
            length = num_new + num_cached
            case = f"prefill {heads}/{kv_heads} {num_new} behind {num_cached}"

            def attend(
                launch: paged_attention.TileLaunch | None,
                rows: int,
                sizes: tuple[int, int, int, int] = (heads, kv_heads, num_new, num_cached),
            ) -> None:
                heads, kv_heads, num_new, num_cached = sizes
                _, slots, tables, lengths = _create_decode(heads, kv_heads, 1, num_new + num_cached)
                key = ("prefill", sizes, rows)
                if key not in _tensors:
                    tile_tokens = rows * kv_heads // heads
                    sequences, firsts = paged_attention.list_tiles([num_new], tile_tokens)
                    tensors = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in
                               ([0, num_new], sequences, firsts)]  # fmt: skip
                    q = torch.randn(num_new, heads, 128, device="cuda", dtype=torch.bfloat16)
                    _tensors[key] = (q, *tensors)
                q, starts, sequences, firsts = _tensors[key]
                batch = paged_attention.PagedBatch(
                    tables, starts, lengths, sequences, firsts, rows * kv_heads // heads
                )
                num_layers = len(slots) // (-(-(num_new + num_cached) // _BLOCK) * _BLOCK)
                layout = paged_attention.PagedLayout(0, num_layers, _BLOCK, kv_heads, 128**-0.5)
                paged_attention.paged_attention_triton(q, slots, batch, layout, launch)

            def attend_by_torch(sizes: tuple[int, int, int] = (heads, kv_heads, num_new)) -> None:
                heads, kv_heads, num_new = sizes
                key = ("torch", sizes)
                if key not in _tensors:
                    _tensors[key] = tuple(
                        torch.randn(1, n, num_new, 128, device="cuda", dtype=torch.bfloat16)
                        for n in (heads, kv_heads, kv_heads)
                    )
                functional.scaled_dot_product_attention(
                    *_tensors[key], is_causal=True, enable_gqa=True
                )

            flops = 4 * (length * length - num_cached * num_cached) / 2 * heads * 128
            case += f" ({flops / 1e12:.3f} TFLOP)"
            if not num_cached:
                yield case, "= torch", attend_by_torch
            yield case, "= own", lambda a=attend: a(None, 64)
            for rows, keys, warps, stages in (
                (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 64, 8, 3),
                (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2),
                (128, 128, 8, 3), (128, 64, 4, 2), (128, 64, 4, 3), (128, 32, 8, 3),
                (256, 64, 8, 2), (128, 32, 4, 4),
            ):  # fmt: skip
                launch = paged_attention.TileLaunch(keys, warps, stages)
                name = f"r{rows} k{keys} w{warps} s{stages}"
                yield case, name, lambda a=attend, n=launch, r=rows: a(n, r)


def _list_products() -> Iterator[Work]:
    """Products of few rows, each by cuBLAS and by ours."""
    traits = find_traits(torch.device("cuda"))
    for _, num_outputs, num_inputs in SMALL_LINEAR.row_counts:
        for num_rows in _ROWS:
            case = f"product {num_outputs} x {num_inputs} rows {num_rows}"
            sizes = (num_rows, num_outputs, num_inputs)
            yield case, "= cublas", lambda s=sizes: _multiply(s, None, by_cublas=True)
            chosen = small_linear.choose_small_launch(traits, *sizes, 2)
            yield case, f"= {astuple(chosen)}", lambda s=sizes: _multiply(s, None)
            for launch in _list_product_launches(num_rows, num_outputs, num_inputs):
                name = str(astuple(launch))
                yield case, name, lambda s=sizes, n=launch: _multiply(s, n)


def _list_product_launches(
    num_rows: int, num_outputs: int, num_inputs: int
) -> Iterator[small_linear.SmallLaunch]:
    """Outputs and inputs of a step, splits, warps, stages."""
    is_large = num_outputs * num_inputs > 100 << 20
    if num_rows <= 2:
        for outputs, inputs, warps in (
            (4, 512, 4), (8, 512, 4), (16, 512, 8), (4, 1024, 4), (8, 1024, 8), (2, 1024, 4),
            (2, 2048, 4), (4, 2048, 8), (8, 256, 4), (16, 256, 4),
        ):  # fmt: skip
            for splits in (1,) if is_large else (1, 2, 4):
                if splits * inputs <= max(num_inputs, inputs):
                    yield small_linear.SmallLaunch(num_rows, outputs, inputs, splits, warps, 1)
        return
    for outputs, inputs, warps, stages in (
        (16, 128, 4, 5), (32, 128, 4, 4), (32, 128, 4, 6), (16, 256, 4, 4), (32, 256, 4, 4),
        (64, 128, 4, 5), (64, 64, 4, 6), (128, 64, 4, 5),
    ):  # fmt: skip
        for splits in (1,) if is_large else (1, 2, 4):
            yield small_linear.SmallLaunch(16, outputs, inputs, splits, warps, stages)


_turns: dict[object, int] = {}


def _multiply(
    sizes: tuple[int, int, int], launch: small_linear.SmallLaunch | None, *, by_cublas: bool = False
) -> None:
    """With weights in turns, so that none is in the cache."""
    num_rows, num_outputs, num_inputs = sizes
    key = ("product", num_outputs, num_inputs)
    if key not in _tensors:
        _tensors.clear()
        count = max(2, -(-_CACHE_BYTES // (2 * num_outputs * num_inputs)))
        _tensors[key] = tuple(
            torch.randn(num_outputs, num_inputs, device="cuda", dtype=torch.bfloat16)
            for _ in range(min(count, 8))
        )
    if ("x", sizes) not in _tensors:
        _tensors["x", sizes] = (
            torch.randn(num_rows, num_inputs, device="cuda", dtype=torch.bfloat16),
        )
    (x,), weights = _tensors["x", sizes], _tensors[key]
    _turns[key] = turn = (_turns.get(key, -1) + 1) % len(weights)
    if by_cublas:
        functional.linear(x, weights[turn])
    else:
        small_linear.small_linear_triton(x, weights[turn], None, launch)


_KINDS: Final = {"decode": _list_decodes, "prefill": _list_prefills, "product": _list_products}

if __name__ == "__main__":
    sys.exit(main())
