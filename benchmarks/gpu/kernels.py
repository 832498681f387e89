"""Every kernel on the device: first its error against the reference, then bytes or FLOPs a second.

Error is ‖out − ref‖ / ‖ref‖ with the reference in fp32. Rooflines: what a plain copy and a large
product reach. A rehearsal runs in triton's interpreter, which multiplies bf16 wrongly.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.faults import Faults
from benchmarks.gpu.kv_errors import list_kv_errors
from benchmarks.gpu.product_errors import MeasureError, list_product_errors
from benchmarks.gpu.timing import DEVICE, IS_GPU, measure_ms
from benchmarks.harness import Figure, summarise
from gpu_pool.kernels.add_rms_norm import add_rms_norm_reference, add_rms_norm_triton
from gpu_pool.kernels.draw import DrawParameters, draw_reference, draw_triton
from gpu_pool.kernels.head_norm import HeadNorm
from gpu_pool.kernels.kv_write import kv_write_triton
from gpu_pool.kernels.norm_rotate_write import (
    KvSlots,
    norm_rotate_write_reference,
    norm_rotate_write_triton,
)
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    choose_tile_tokens,
    find_tile_rows,
    list_tiles,
    paged_attention_reference,
    paged_attention_triton,
)
from gpu_pool.kernels.penalise import Penalties, penalise_reference, penalise_triton
from gpu_pool.kernels.rms_norm import rms_norm_reference, rms_norm_triton
from gpu_pool.kernels.rotary import rotary_reference, rotary_triton
from gpu_pool.kernels.silu_mul import silu_mul_reference, silu_mul_triton
from gpu_pool.kernels.split_decode import split_decode_reference, split_decode_triton
from gpu_pool.kernels.split_plan import plan_splits
from gpu_pool.kernels.token_mask import token_mask_reference, token_mask_triton

_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_BLOCK_SIZE = 16
_SMALL = ([5, 1], [5, 20], 40)
"""New tokens, contexts and the longest of decode, for the interpreter."""
_TFLOP = 1e9  # of FLOPs in a millisecond


def check_kernels(bench: Bench) -> list[Figure]:
    """Relative errors of all kernels, per dtype. Raises: `AssertionError` naming all beyond it."""
    figures: list[Figure] = []
    faults = Faults()
    for dtype in bench.pick(tuple(_BOUNDS), (torch.float32,)):
        for name, measure in _list_errors(dtype).items():
            what = f"{name} {str(dtype).removeprefix('torch.')}"
            with faults.gathered(what):
                error = measure()
                figures.append(summarise(what, OURS, "error", "relative", 0, [error]))
                assert error <= _BOUNDS[dtype], f"{error} is above the bound"
    with faults.gathered("draw"):
        _check_draw(*bench.pick((64, 151_936), (4, 1000)))
    with faults.gathered("masks and penalties"):
        _check_adjustments(bench.pick(151_936, 1000))
    faults.conclude()
    return figures


def measure_rates(bench: Bench) -> list[Figure]:
    """What the device gives at most, and what kernels get of it."""
    figures = [
        *measure_decode_attention(bench),
        *measure_prefill_attention(bench),
        *measure_elementwise(bench),
    ]
    with bench.optional():
        roofline = measure_roofline(bench)
        figures += [*roofline, *_list_shares(figures, roofline)]
    return figures


def measure_roofline(bench: Bench) -> list[Figure]:
    """What the device gives at most: a copy's GB/s, a bf16 product's TFLOP/s."""
    bench.require_gpu("the roofline")
    source, size = _draw(1 << 29), 8192
    target, x, y = torch.empty_like(source), _draw(size, size), _draw(size, size)
    copied = [2 * source.nbytes / ms / 1e6 for ms in measure_ms(lambda: target.copy_(source))]
    multiplied = [2 * size**3 / ms / _TFLOP for ms in measure_ms(lambda: torch.mm(x, y))]
    return [
        summarise("roofline", "copy", "rate", "GB/s", source.nbytes >> 20, copied),
        summarise("roofline", "product", "rate", "TFLOP/s", size, multiplied),
    ]


def measure_elementwise(bench: Bench) -> list[Figure]:
    """GB/s of norms, gate and KV write beside a plain copy of as many bytes."""
    return [
        summarise(name, OURS, "rate", "GB/s", rows, [size / ms / 1e6 for ms in measure_ms(work)])
        for rows in bench.pick((1, 16, 256, 4096), (1,))
        for name, work, size in _list_elementwise(rows)
    ]


def measure_decode_attention(bench: Bench) -> list[Figure]:
    """GB/s of KV read by decode attention, over batch sizes and contexts."""
    figures: list[Figure] = []
    cases = ((1, 1024), (1, 32768), (8, 4096), (64, 1024), (256, 600))
    for batch_size, length in bench.pick(cases, ((2, 64),)):
        samples, num_bytes = _time_decode(
            batch_size, length, bench.pick(torch.bfloat16, torch.half)
        )
        what = f"split_decode context {length}"
        rates = [num_bytes / ms / 1e6 for ms in samples]
        figures.append(summarise(what, OURS, "rate", "GB/s", batch_size, rates))
        figures.append(summarise(what, OURS, "time", "ms", batch_size, samples))
    return figures


def measure_prefill_attention(bench: Bench) -> list[Figure]:
    """TFLOP/s of prefill attention beside torch's own causal attention on the same numbers."""
    return [
        summarise("prefill attention", provider, "rate", "TFLOP/s", length, rates)
        for length in bench.pick((1024, 8192, 32768), (32,))
        for provider, rates in _time_prefill(length, bench.pick(torch.bfloat16, torch.half)).items()
    ]


def _list_shares(figures: list[Figure], roofline: list[Figure]) -> list[Figure]:
    """What of the roofline each rate is."""
    most = {figure.unit: figure.p50 for figure in roofline}
    return [
        summarise(figure.what, figure.provider, "of the roofline", "%", figure.x, [share])
        for figure in figures
        if figure.unit in most
        for share in [100 * figure.p50 / most[figure.unit]]
    ]


def _list_elementwise(rows: int) -> list[tuple[str, Callable[[], object], int]]:
    """Kernels on so many rows of Llama-3.1-8B's sizes, with the bytes that each moves."""
    x, residual, weight = _draw(rows, 4096), _draw(rows, 4096), _draw(4096)
    gate_up, kv, slots = _draw(rows, 2 * 14336), _draw(rows, 2048), _draw(8192, 2048)
    ids = torch.randperm(8192, device=DEVICE)[:rows]
    return [
        ("rms_norm", lambda: rms_norm_triton(x, weight, 1e-6), 2 * x.nbytes),
        ("add_rms_norm", lambda: add_rms_norm_triton(x, residual, weight, 1e-6), 4 * x.nbytes),
        ("silu_mul", lambda: silu_mul_triton(gate_up), gate_up.nbytes * 3 // 2),
        ("kv_write", lambda: kv_write_triton(slots, ids, kv), 2 * kv.nbytes),
        ("copy", lambda: residual.copy_(x), 2 * x.nbytes),
    ]


def _time_decode(batch_size: int, length: int, dtype: torch.dtype) -> tuple[list[float], int]:
    """Milliseconds, and the bytes of KV that are read."""
    q, slots, tables, lengths, layout = _create_decode(batch_size, length, dtype)
    num_bytes = batch_size * length * slots.shape[1] * slots.itemsize
    plan = plan_splits(lengths, length)
    samples = measure_ms(lambda: split_decode_triton(q, slots, tables, plan, layout))
    return samples, num_bytes


def _time_prefill(length: int, dtype: torch.dtype) -> dict[str, list[float]]:
    """TFLOP/s of ours and of torch's over one prompt of `length` tokens."""
    q, slots, batch, layout = _create_prefill([length], [length], dtype)
    flops = 4 * length * length / 2 * q.shape[1] * q.shape[2]
    query = q.transpose(0, 1)[None]
    k, v = (torch.randn_like(query[:, :8]) for _ in range(2))
    runs: dict[str, Callable[[], object]] = {
        OURS: lambda: paged_attention_triton(q, slots, batch, layout),
        "torch sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(
            query, k, v, is_causal=True, enable_gqa=True
        ),
    }
    return {
        provider: [flops / ms / _TFLOP for ms in measure_ms(work, 8)]
        for provider, work in runs.items()
    }


def _list_errors(dtype: torch.dtype) -> dict[str, MeasureError]:
    """What tells the relative error of every kernel that has a reference."""
    x, residual, weight = _draw(37, 4096, dtype), _draw(37, 4096, dtype), _draw(4096, dtype=dtype)
    gate_up = _draw(37, 2 * 1030, dtype)
    own: dict[str, MeasureError] = {
        "rms_norm": lambda: _compare(
            rms_norm_triton(x, weight, 1e-6), rms_norm_reference(x.float(), weight.float(), 1e-6)
        ),
        "add_rms_norm": lambda: _compare(
            add_rms_norm_triton(x, residual, weight, 1e-6)[0],
            add_rms_norm_reference(x.float(), residual.float(), weight.float(), 1e-6)[0],
        ),
        "silu_mul": lambda: _compare(silu_mul_triton(gate_up), silu_mul_reference(gate_up.float())),
        "rotary": partial(_measure_rotary, dtype),
        "norm_rotate_write": partial(_measure_heads, dtype),
        "paged_attention": partial(_measure_prefill, dtype),
        "split_decode": partial(_measure_decode, dtype),
    }
    return own | list_product_errors(dtype) | list_kv_errors(dtype)


def _measure_rotary(dtype: torch.dtype) -> float:
    """The error of turned heads."""
    heads, cos, sin = _draw(37, 12, 128, dtype), _draw(37, 128, dtype), _draw(37, 128, dtype)
    turned, expected = heads.clone(), heads.float()
    rotary_triton(turned, cos, sin)
    rotary_reference(expected, cos.float(), sin.float())
    return _compare(turned, expected)


def _measure_prefill(dtype: torch.dtype) -> float:
    """The error of attention over chunks of several prompts."""
    num_new, contexts = ([37, 1, 300], [37, 90, 1200]) if IS_GPU else _SMALL[:2]
    q, slots, batch, layout = _create_prefill(num_new, contexts, dtype)
    return _compare(
        paged_attention_triton(q, slots, batch, layout),
        paged_attention_reference(q.float(), slots.float(), batch, layout),
    )


def _measure_decode(dtype: torch.dtype) -> float:
    """The error of attention of single tokens."""
    longest = 1300 if IS_GPU else _SMALL[2]
    single, kv, tables, lengths, layout = _create_decode(5, longest, dtype)
    return _compare(
        split_decode_triton(single, kv, tables, plan_splits(lengths, longest), layout),
        split_decode_reference(single.float(), kv.float(), tables, lengths, layout),
    )


def _measure_heads(dtype: torch.dtype) -> float:
    """The error of heads normed, turned and written, 8 of queries, 2 of keys and 2 of values."""
    heads, cos, sin = _draw(37, 12, 128, dtype), _draw(37, 128, dtype), _draw(37, 128, dtype)
    weight = _draw(10, heads.shape[2], dtype=heads.dtype)
    slots = _draw(len(heads), 4 * heads.shape[2], heads.dtype)
    ids = torch.randperm(len(heads), device=heads.device)
    tables, own, expected = (cos, sin), heads.clone(), heads.float()
    norm_rotate_write_triton(own, 8, HeadNorm(weight, 1e-6), tables, KvSlots(slots, ids))
    written = KvSlots(slots.float(), ids)
    in_fp32 = (cos.float(), sin.float())
    norm_rotate_write_reference(expected, 8, HeadNorm(weight.float(), 1e-6), in_fp32, written)
    return max(_compare(own[:, :8], expected[:, :8]), _compare(slots, written.slots_XE))


def _check_draw(num_rows: int, vocab_size: int) -> None:
    """Drawn tokens equal the sampler's, but for few. Raises: `AssertionError`."""
    logits, parameters = _create_draw(num_rows, vocab_size)
    for has_filters in (False, True):
        asked = replace(parameters, has_filters=has_filters)
        expected = draw_reference(logits.clone(), asked)
        actual = draw_triton(logits, asked)
        # Where two tokens all but tie, the device's exponentials may decide otherwise.
        num_others = int((actual != expected).sum())
        assert num_others <= 1, f"{num_others} of {num_rows} draws differ from the sampler's"


def _check_adjustments(vocab_size: int) -> None:
    """Masks and penalties are those of the references. Raises: `AssertionError`."""
    logits = _draw(2, vocab_size, torch.float32)
    device = logits.device
    words = torch.randint(-(2**31), 2**31, (1, -(-vocab_size // 32)), device=device).int()
    output = torch.randint(0, 3, (vocab_size,), device=device).int()
    counts = (output > 0, output, Penalties(1.2, 0.3, -0.5))
    expected, row = logits.clone(), torch.tensor([1], device=device)
    penalise_triton(logits[0], *counts)
    penalise_reference(expected[0], *counts)
    token_mask_triton(logits, row, words)
    token_mask_reference(expected, row, words)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def _create_draw(rows: int, vocab_size: int) -> tuple[Tensor, DrawParameters]:
    """Logits, every other row with top-k, every third with top-p."""
    index = torch.arange(rows, device=DEVICE)
    return _draw(rows, vocab_size, torch.float32) * 3, DrawParameters(
        temperatures_R=torch.linspace(0, 2, rows, device=DEVICE),
        top_ks_R=torch.where(index % 2 == 0, 20, 0).int(),
        top_ps_R=torch.where(index % 3 == 0, 0.95, 1.0),
        min_ps_R=torch.zeros(rows, device=DEVICE),
        seeds_R=index,
        positions_R=7 * index,
    )


def _create_decode(
    batch_size: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, PagedLayout]:
    """Llama-3.1-8B's heads over blocks in no order."""
    num_blocks = -(-length // _BLOCK_SIZE)
    slots = _draw(batch_size * num_blocks * _BLOCK_SIZE, 2 * 8 * 128, dtype)
    tables = torch.randperm(batch_size * num_blocks, device=DEVICE).view(batch_size, -1)
    lengths = torch.full((batch_size,), length, dtype=torch.int32, device=DEVICE)
    layout = PagedLayout(0, 1, _BLOCK_SIZE, 8, 128**-0.5)
    return _draw(batch_size, 32, 128, dtype), slots, tables.int(), lengths, layout


def _create_prefill(
    num_new: list[int], lengths: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, PagedBatch, PagedLayout]:
    """Chunks of several sequences with the same heads, in tiles as the engine cuts them."""
    _, slots, tables, _, layout = _create_decode(len(lengths), max(lengths), dtype)
    q = _draw(sum(num_new), 32, 128, dtype)
    tile_tokens = choose_tile_tokens(4, max(num_new), find_tile_rows(q, layout))
    parts = (torch.tensor([0, *num_new]).cumsum(0), lengths, *list_tiles(num_new, tile_tokens))
    tensors = (torch.as_tensor(part, dtype=torch.int32, device=DEVICE) for part in parts)
    return q, slots, PagedBatch(tables, *tensors, tile_tokens=tile_tokens), layout


def _draw(*shape: int | torch.dtype, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers on the device; a dtype may follow the sizes."""
    sizes = [size for size in shape if isinstance(size, int)]
    found = [size for size in shape if isinstance(size, torch.dtype)]
    return torch.randn(*sizes, device=DEVICE).to(found[0] if found else dtype)


def _compare(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return ((actual.float() - expected).norm() / expected.norm()).item()
