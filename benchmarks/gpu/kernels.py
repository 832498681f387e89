"""Every kernel on the device: first its error against the reference, then bytes or FLOPs a second.

Error is ‖out − ref‖ / ‖ref‖ with the reference in fp32. Rooflines: what a plain copy reaches.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.timing import measure_ms
from benchmarks.harness import Figure, summarise
from gpu_pool.kernels.add_rms_norm import add_rms_norm_reference, add_rms_norm_triton
from gpu_pool.kernels.gumbel_argmax import gumbel_argmax_reference, gumbel_argmax_triton
from gpu_pool.kernels.kv_write import kv_write_triton
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    choose_tile_tokens,
    list_tiles,
    paged_attention_reference,
    paged_attention_triton,
)
from gpu_pool.kernels.rms_norm import rms_norm_reference, rms_norm_triton
from gpu_pool.kernels.rotary import rotary_reference, rotary_triton
from gpu_pool.kernels.silu_mul import silu_mul_reference, silu_mul_triton
from gpu_pool.kernels.split_decode import split_decode_reference, split_decode_triton
from gpu_pool.sampling.noise import draw_log_exponentials, mix_key

OURS = "hearth"
_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_BLOCK_SIZE = 16
_DEVICE = torch.device("cuda")


def check_kernels() -> list[Figure]:
    """Relative errors of all kernels, per dtype. Raises: `AssertionError` beyond the bound."""
    figures: list[Figure] = []
    for dtype, bound in _BOUNDS.items():
        for name, error in _list_errors(dtype).items():
            assert error <= bound, f"{name} in {dtype}: error {error} is above {bound}"
            what = f"{name} {str(dtype).removeprefix('torch.')}"
            figures.append(summarise(what, OURS, "error", "relative", 0, [error]))
    _check_race()
    return figures


def measure_elementwise() -> list[Figure]:
    """GB/s of norms, gate and KV write beside a plain copy of as many bytes."""
    return [
        summarise(name, OURS, "rate", "GB/s", rows, [size / ms / 1e6 for ms in measure_ms(work)])
        for rows in (1, 16, 256, 4096)
        for name, work, size in _list_elementwise(rows)
    ]


def measure_decode_attention() -> list[Figure]:
    """GB/s of KV read by decode attention, over batch sizes and contexts."""
    figures: list[Figure] = []
    for batch_size, length in ((1, 1024), (1, 32768), (8, 4096), (64, 1024), (256, 600)):
        samples, num_bytes = _time_decode(batch_size, length)
        what = f"split_decode context {length}"
        rates = [num_bytes / ms / 1e6 for ms in samples]
        figures.append(summarise(what, OURS, "rate", "GB/s", batch_size, rates))
        figures.append(summarise(what, OURS, "time", "ms", batch_size, samples))
    return figures


def measure_prefill_attention() -> list[Figure]:
    """TFLOP/s of prefill attention beside torch's own causal attention on the same numbers."""
    return [
        summarise("prefill", provider, "rate", "TFLOP/s", length, rates)
        for length in (1024, 8192, 32768)
        for provider, rates in _time_prefill(length).items()
    ]


def _list_elementwise(rows: int) -> list[tuple[str, Callable[[], object], int]]:
    """Kernels on so many rows of Llama-3.1-8B's sizes, with the bytes that each moves."""
    x, residual, weight = _draw(rows, 4096), _draw(rows, 4096), _draw(4096)
    gate_up, kv, slots = _draw(rows, 2 * 14336), _draw(rows, 2048), _draw(8192, 2048)
    ids = torch.randperm(8192, device=_DEVICE)[:rows]
    return [
        ("rms_norm", lambda: rms_norm_triton(x, weight, 1e-6), 2 * x.nbytes),
        ("add_rms_norm", lambda: add_rms_norm_triton(x, residual, weight, 1e-6), 4 * x.nbytes),
        ("silu_mul", lambda: silu_mul_triton(gate_up), gate_up.nbytes * 3 // 2),
        ("kv_write", lambda: kv_write_triton(slots, ids, kv), 2 * kv.nbytes),
        ("copy", lambda: residual.copy_(x), 2 * x.nbytes),
    ]


def _time_decode(batch_size: int, length: int) -> tuple[list[float], int]:
    """Milliseconds, and the bytes of KV that are read."""
    q, slots, tables, lengths, layout = _create_decode(batch_size, length, torch.bfloat16)
    num_bytes = batch_size * length * slots.shape[1] * slots.itemsize
    samples = measure_ms(lambda: split_decode_triton(q, slots, tables, lengths, layout, length))
    return samples, num_bytes


def _time_prefill(length: int) -> dict[str, list[float]]:
    """TFLOP/s of ours and of torch's over one prompt of `length` tokens."""
    q, slots, batch, layout = _create_prefill([length], [length], torch.bfloat16)
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
        provider: [flops / ms / 1e9 for ms in measure_ms(work, 8)]
        for provider, work in runs.items()
    }


def _list_errors(dtype: torch.dtype) -> dict[str, float]:
    """The relative error of every kernel that has a reference."""
    x, residual, weight = _draw(37, 4096, dtype), _draw(37, 4096, dtype), _draw(4096, dtype=dtype)
    gate_up, heads = _draw(37, 2 * 1030, dtype), _draw(37, 12, 128, dtype)
    cos, sin = _draw(37, 128, dtype), _draw(37, 128, dtype)
    turned, expected = heads.clone(), heads.float()
    rotary_triton(turned, cos, sin)
    rotary_reference(expected, cos.float(), sin.float())
    q, slots, batch, layout = _create_prefill([37, 1, 300], [37, 90, 1200], dtype)
    single, kv, tables, lengths, decode_layout = _create_decode(5, 1300, dtype)
    return {
        "rms_norm": _compare(
            rms_norm_triton(x, weight, 1e-6), rms_norm_reference(x.float(), weight.float(), 1e-6)
        ),
        "add_rms_norm": _compare(
            add_rms_norm_triton(x, residual, weight, 1e-6)[0],
            add_rms_norm_reference(x.float(), residual.float(), weight.float(), 1e-6)[0],
        ),
        "silu_mul": _compare(silu_mul_triton(gate_up), silu_mul_reference(gate_up.float())),
        "rotary": _compare(turned, expected),
        "paged_attention": _compare(
            paged_attention_triton(q, slots, batch, layout),
            paged_attention_reference(q.float(), slots.float(), batch, layout),
        ),
        "split_decode": _compare(
            split_decode_triton(single, kv, tables, lengths, decode_layout, 1300),
            split_decode_reference(single.float(), kv.float(), tables, lengths, decode_layout),
        ),
    }


def _check_race() -> None:
    """Drawn tokens equal the sampler's. Raises: `AssertionError`."""
    logits = _draw(64, 151_936, torch.float32)
    keys = [mix_key(row, 7 * row) for row in range(64)]
    temperatures = torch.linspace(0, 2, 64, device=_DEVICE)
    cutoffs = torch.full((64,), float("-inf"), device=_DEVICE)
    noise = draw_log_exponentials(keys, logits.shape[1], _DEVICE)
    expected = gumbel_argmax_reference(logits, noise, temperatures, cutoffs)
    keys_R2 = torch.tensor(keys, dtype=torch.int32, device=_DEVICE)
    actual = gumbel_argmax_triton(logits, keys_R2, temperatures, cutoffs)
    assert actual.tolist() == expected.tolist(), "the race's winners differ from the sampler's"


def _create_decode(
    batch_size: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, PagedLayout]:
    """Llama-3.1-8B's heads over blocks in no order."""
    num_blocks = -(-length // _BLOCK_SIZE)
    slots = _draw(batch_size * num_blocks * _BLOCK_SIZE, 2 * 8 * 128, dtype)
    tables = torch.randperm(batch_size * num_blocks, device=_DEVICE).view(batch_size, -1)
    lengths = torch.full((batch_size,), length, dtype=torch.int32, device=_DEVICE)
    layout = PagedLayout(0, 1, _BLOCK_SIZE, 8, 128**-0.5)
    return _draw(batch_size, 32, 128, dtype), slots, tables.int(), lengths, layout


def _create_prefill(
    num_new: list[int], lengths: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, PagedBatch, PagedLayout]:
    """Chunks of several sequences with the same heads."""
    _, slots, tables, _, layout = _create_decode(len(lengths), max(lengths), dtype)
    tile_tokens = choose_tile_tokens(4, max(num_new))
    parts = (torch.tensor([0, *num_new]).cumsum(0), lengths, *list_tiles(num_new, tile_tokens))
    tensors = (torch.as_tensor(part, dtype=torch.int32, device=_DEVICE) for part in parts)
    return (
        _draw(sum(num_new), 32, 128, dtype),
        slots,
        PagedBatch(tables, *tensors, tile_tokens),
        layout,
    )


def _draw(*shape: int | torch.dtype, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers on the device; a dtype may follow the sizes."""
    sizes = [size for size in shape if isinstance(size, int)]
    found = [size for size in shape if isinstance(size, torch.dtype)]
    return torch.randn(*sizes, device=_DEVICE).to(found[0] if found else dtype)


def _compare(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return ((actual.float() - expected).norm() / expected.norm()).item()
