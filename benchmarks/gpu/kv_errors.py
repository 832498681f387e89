"""How far what reads and moves KV on the device is from its references.

Error is ‖out − ref‖ / ‖ref‖ with the reference in fp32. Read next: `kernels`, which reports it.
"""

from functools import partial

import torch

from benchmarks.gpu.product_errors import MeasureError, compare
from benchmarks.gpu.timing import DEVICE, IS_GPU
from gpu_pool.kernels.block_copy import gather_blocks_triton, scatter_blocks_triton
from gpu_pool.kernels.fp8_slots import Fp8Slots, widen_slots
from gpu_pool.kernels.fp8_write import fp8_write_triton
from gpu_pool.kernels.latent_attention import latent_attention_reference, latent_attention_triton
from gpu_pool.kernels.latent_decode import latent_decode_reference, latent_decode_triton
from gpu_pool.kernels.paged_attention import PagedBatch, PagedLayout, choose_tile_tokens, list_tiles
from gpu_pool.kernels.split_decode import split_decode_reference, split_decode_triton
from gpu_pool.kernels.split_plan import plan_splits

_BLOCK_SIZE = 16
_VALUE_DIM, _HEAD_DIM = 512, 576


def list_kv_errors(dtype: torch.dtype) -> dict[str, MeasureError]:
    """What tells the errors of latent attention, with the heads of DeepSeek-V2 Lite and V3."""
    found: dict[str, MeasureError] = {}
    for num_heads in (16, 128) if IS_GPU else (16,):
        found[f"latent_attention {num_heads}"] = partial(_measure_prefill, num_heads, dtype)
        found[f"latent_decode {num_heads}"] = partial(_measure_decode, num_heads, dtype)
    found["split_decode fp8"] = partial(_measure_eight_bits, dtype)
    found["block_copy"] = partial(_measure_block_copy, dtype)
    return found


def _measure_eight_bits(dtype: torch.dtype) -> float:
    """Writing and reading slots of eight bits, against torch that reads what was written."""
    fp8 = Fp8Slots(2 * 2 * 64, 2 * 2)
    kv_TE = torch.randn(640, fp8.num_elements, device=DEVICE).to(dtype)
    slots_XS = torch.zeros((640, fp8.num_bytes), dtype=torch.uint8, device=DEVICE)
    fp8_write_triton(slots_XS, torch.arange(640, device=DEVICE), kv_TE, fp8)
    written = widen_slots(slots_XS, fp8, torch.float32)
    assert compare(written, kv_TE.float()) < 0.04, "eight bits lose more than their rounding"
    q_BNH = torch.randn(1, 8, 64, device=DEVICE).to(dtype)
    tables_BC = torch.arange(40, dtype=torch.int32, device=DEVICE)[None]
    lengths_B = torch.tensor([633], dtype=torch.int32, device=DEVICE)
    layout = PagedLayout(0, 1, _BLOCK_SIZE, 2, 64**-0.5, fp8=fp8)
    plan = plan_splits(lengths_B, 633)
    return compare(
        split_decode_triton(q_BNH, slots_XS, tables_BC, plan, layout),
        split_decode_reference(q_BNH.float(), slots_XS, tables_BC, lengths_B, layout),
    )


def _measure_block_copy(dtype: torch.dtype) -> float:
    """0: blocks go out and come back as they were. Raises: `AssertionError`."""
    blocks = torch.randn(200, 3, 16, 2, 8, 128, device=DEVICE).to(dtype)
    ids = torch.randperm(200, device=DEVICE)[:77]
    copies = gather_blocks_triton(blocks, ids)
    assert torch.equal(copies, blocks[ids]), "copies differ from the blocks"
    others = torch.zeros_like(blocks)
    scatter_blocks_triton(others, ids, copies)
    blocks[~torch.isin(torch.arange(200, device=DEVICE), ids)] = 0
    assert torch.equal(others, blocks), "blocks came back elsewhere or changed"
    return 0.0


def _measure_prefill(num_heads: int, dtype: torch.dtype) -> float:
    """Chunks behind prefixes."""
    num_new, lengths = ([37, 1, 150], [37, 90, 600]) if IS_GPU else ([3, 1, 2], [3, 9, 20])
    tile_tokens = choose_tile_tokens(num_heads, max(num_new))
    tables_BC = torch.randperm(3 * 38, device=DEVICE).view(3, 38)
    parts = (
        tables_BC,
        torch.tensor([0, *num_new]).cumsum(0),
        lengths,
        *list_tiles(num_new, tile_tokens),
    )
    tensors = (torch.as_tensor(part, dtype=torch.int32, device=DEVICE) for part in parts)
    batch = PagedBatch(*tensors, tile_tokens=tile_tokens)
    q_TNH = torch.randn(sum(num_new), num_heads, _HEAD_DIM, device=DEVICE).to(dtype)
    slots_XE = torch.randn(3 * 38 * _BLOCK_SIZE, _HEAD_DIM, device=DEVICE).to(dtype)
    layout = PagedLayout(0, 1, _BLOCK_SIZE, 1, _HEAD_DIM**-0.5)
    return compare(
        latent_attention_triton(q_TNH, slots_XE, batch, layout, _VALUE_DIM),
        latent_attention_reference(q_TNH.float(), slots_XE.float(), batch, layout, _VALUE_DIM),
    )


def _measure_decode(num_heads: int, dtype: torch.dtype) -> float:
    """Single tokens behind contexts of one split and of several."""
    lengths = [1, 256, 1300] if IS_GPU else [1, 16, 40]
    lengths_B = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    tables_BC = torch.randperm(3 * 82, device=DEVICE).view(3, 82).int()
    q_BNH = torch.randn(3, num_heads, _HEAD_DIM, device=DEVICE).to(dtype)
    slots_XE = torch.randn(3 * 82 * _BLOCK_SIZE, _HEAD_DIM, device=DEVICE).to(dtype)
    layout = PagedLayout(0, 1, _BLOCK_SIZE, 1, _HEAD_DIM**-0.5)
    plan = plan_splits(lengths_B, max(lengths))
    return compare(
        latent_decode_triton(q_BNH, slots_XE, tables_BC, plan, layout, _VALUE_DIM),
        latent_decode_reference(
            q_BNH.float(), slots_XE.float(), tables_BC, lengths_B, layout, _VALUE_DIM
        ),
    )
