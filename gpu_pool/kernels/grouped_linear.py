"""Products of rows with their experts' weights: y = x · W_eᵀ + b_e, all experts in one launch.

Rows stand by expert (`expert_order`). The first product of an expert takes each token's row from
where it is and goes through the expert's gate before anything is written: silu(g) · u, or gpt-oss's
clamped form. The second writes each row back to where its token's choice is, for `expert_sum`.
A row may be weighed first: its product is multiplied instead, which is the same but for rounding.
What a gate is given is rounded to the dtype, as an unfused product is; silu is, too.
A row's result does not depend on its neighbours while the launch settings stay: these go by how
many rows an expert has on average.
Shapes: N rows, E held experts, K inputs, F outputs (of a gated product half of the weights' rows,
the gate's first). Takes bf16, fp16 or fp32, fp32 accumulation; weights may be in fp8 blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.clamped_swiglu import clamped_swiglu_reference
from gpu_pool.kernels.expert_order import ExpertOrder, HeldExperts
from gpu_pool.kernels.fp8_blocks import (
    BLOCK,
    BlockScaledWeight,
    has_fp8,
    widen_blocks_reference,
    widen_e4m3,
)
from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.silu_mul import silu_mul_reference
from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_NEIGHBOURS = 8
"""Blocks of rows that go through an expert's weights side by side, so that a cache serves them."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's gate; see `clamped_swiglu`."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """What one product of experts needs beside its inputs."""

    weights_EMK: Tensor | BlockScaledWeight
    bias_EM: Tensor | None
    gate: ClampedGate | None = None
    """None: silu · mul, where the product is gated."""


@dataclass(frozen=True, slots=True)
class GroupedLaunch:
    """What a program computes at once. `outputs` are those of a gate where there is one."""

    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


def choose_block_rows(num_rows: int, held: HeldExperts) -> int:
    """Rows of a block, by how many an expert has on average. Not measured on a GPU yet."""
    mean = num_rows / held.total
    return 16 if mean <= 8 else 32 if mean <= 24 else 64 if mean <= 96 else 128


def choose_grouped_launch(
    traits: GpuTraits, block_rows: int, itemsize: int, *, is_gated: bool, is_blocked: bool = False
) -> GroupedLaunch:
    """The settings for a kind of GPU and weights of `itemsize` bytes. Not measured on a GPU yet.

    Few rows wait for weights alone, so their programs are many and hold much in flight; many rows
    want large tiles.
    """
    inputs = (256 if block_rows <= 32 else 128) // itemsize
    num_stages = 4 if traits.shared_bytes > 128 << 10 else 3
    if is_blocked:  # in steps of a block, whose sum is another's beside the one it is added to
        return GroupedLaunch(
            32 if is_gated or block_rows == 128 else 64,
            BLOCK,
            8 if block_rows >= 64 else 4,
            num_stages,
        )
    if block_rows <= 32:
        return GroupedLaunch(32 if is_gated else 64, inputs, 4, num_stages)
    if traits.capability < 90 and not is_gated:
        inputs //= 2  # tiles pass through registers there
    num_warps = 4 if block_rows == 64 else 8
    return GroupedLaunch(64 if is_gated else 128, inputs, num_warps, num_stages)


def apply_gate_reference(gate_up_N2F: Tensor, gate: ClampedGate | None) -> Tensor:
    """The gated values `[N, F]`, in plain torch."""
    if gate is None:
        return silu_mul_reference(gate_up_N2F)
    return clamped_swiglu_reference(gate_up_N2F, gate.alpha, gate.limit)


def gather_gated_reference(
    x_TK: Tensor, product: ExpertProduct, order: ExpertOrder, weights_TC: Tensor | None, chosen: int
) -> Tensor:
    """Every row's gated product `[N, F]` in the order of experts, in plain torch."""
    num_outputs = product.weights_EMK.shape[1] // 2
    out_NF = x_TK.new_zeros(len(order.rows_N), num_outputs)
    for expert, first, end in _list_blocks(order):
        rows = order.rows_N[first:end].long()
        y = x_TK[rows // chosen].float() @ _widen(product, expert).T
        if weights_TC is not None:
            y = y * weights_TC.flatten()[rows, None]
        if product.bias_EM is not None:
            y = y + product.bias_EM[expert].float()
        out_NF[first:end] = apply_gate_reference(y.to(x_TK.dtype), product.gate)
    return out_NF


def scatter_product_reference(x_NK: Tensor, product: ExpertProduct, order: ExpertOrder) -> Tensor:
    """The products `[N, F]` of rows in the order of experts, each where its row was."""
    out_NF = x_NK.new_zeros(len(order.rows_N), product.weights_EMK.shape[1])
    for expert, first, end in _list_blocks(order):
        y = x_NK[first:end].float() @ _widen(product, expert).T
        if product.bias_EM is not None:
            y = y + product.bias_EM[expert].float()
        out_NF[order.rows_N[first:end].long()] = y.to(x_NK.dtype)
    return out_NF


def _widen(product: ExpertProduct, expert: int) -> Tensor:
    """An expert's matrix in fp32."""
    weight = product.weights_EMK[expert]
    if isinstance(weight, BlockScaledWeight):
        return widen_blocks_reference(weight)
    return weight.float()


def _list_blocks(order: ExpertOrder) -> list[tuple[int, int, int]]:
    """Expert, first and end of every block that is needed."""
    blocks = zip(
        order.experts_B.tolist(), order.firsts_B.tolist(), order.ends_B.tolist(), strict=True
    )
    return [block for block in blocks if block[0] >= 0]


@jit
def apply_gate(gate, up, alpha, limit, IS_CLAMPED: tl.constexpr, DTYPE: tl.constexpr):
    """What a gate makes of two sums, both rounded to `DTYPE` first."""
    gate = gate.to(DTYPE).to(tl.float32)
    up = up.to(DTYPE).to(tl.float32)
    if IS_CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        gated = gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)
    else:
        silu = (gate / (1.0 + tl.exp(-gate))).to(DTYPE).to(tl.float32)
        gated = silu * up
    return gated


@jit
def _add_product(
    sums,
    x,
    weights_ptrs,
    scale_ptr,
    is_weight,
    HAS_SCALES: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`sums` and the product of `x` with weights, whose factor is one where they have any."""
    w = tl.load(weights_ptrs, mask=is_weight, other=0)
    if HAS_SCALES:
        w = widen_e4m3(w, HAS_FP8, x.dtype)
        sums += tl.dot(x, w, input_precision=PRECISION) * tl.load(scale_ptr)
    else:
        sums = tl.dot(x, w, sums, input_precision=PRECISION)
    return sums


@jit
def _weigh(sums, row_weights, biases_ptr, outputs, is_output, HAS_BIAS: tl.constexpr):
    """The sums of weighed rows, and their biases."""
    sums = sums * row_weights
    if HAS_BIAS:
        biases = tl.load(biases_ptr + outputs, mask=is_output, other=0.0)
        sums += biases.to(tl.float32)[None, :]
    return sums


@jit
def _find_block(num_blocks, num_outputs, OUTPUTS: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """The block of rows and the part of outputs of this program; neighbours take turns."""
    program = tl.program_id(0)
    num_parts = tl.cdiv(num_outputs, OUTPUTS)
    first = program // (NEIGHBOURS * num_parts) * NEIGHBOURS
    num_neighbours = tl.minimum(num_blocks - first, NEIGHBOURS)
    inside = program % (NEIGHBOURS * num_parts)
    return first + inside % num_neighbours, inside // num_neighbours


@jit
def _grouped_linear_kernel(
    x_ptr,
    weights_ptr,
    scales_ptr,
    bias_ptr,
    row_weights_ptr,
    out_ptr,
    rows_ptr,
    experts_ptr,
    firsts_ptr,
    ends_ptr,
    num_blocks,
    num_outputs,
    alpha,
    limit,
    INPUTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_CLAMPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_FP8: tl.constexpr,
    HAS_ROW_WEIGHTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Some outputs of one block of rows per program. Gated products gather, the others scatter."""
    block, part = _find_block(num_blocks, num_outputs, BLOCK_OUTPUTS, NEIGHBOURS)
    expert = tl.load(experts_ptr + block).to(tl.int64)
    if expert < 0:
        return
    places = tl.load(firsts_ptr + block) + tl.arange(0, BLOCK_ROWS)
    is_row = places < tl.load(ends_ptr + block)
    rows = tl.load(rows_ptr + places, mask=is_row, other=0)
    from_rows = (rows // CHOSEN if IS_GATED else places).to(tl.int64)
    to_rows = (places if IS_GATED else rows).to(tl.int64)
    outputs = part * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    is_output = outputs < num_outputs
    inputs = tl.arange(0, BLOCK_INPUTS)
    x_ptrs = x_ptr + from_rows[:, None] * INPUTS + inputs[None, :]
    HALVES: tl.constexpr = IS_GATED + 1
    weights_ptrs = weights_ptr + expert * HALVES * num_outputs * INPUTS
    weights_ptrs += outputs[None, :] * INPUTS + inputs[:, None]
    # A program's outputs lie in one block, and each of its steps in another.
    SCALES: tl.constexpr = (INPUTS + BLOCK_INPUTS - 1) // BLOCK_INPUTS
    scale_row = expert * tl.cdiv(HALVES * num_outputs, 128) + part * BLOCK_OUTPUTS // 128
    scales_ptrs = (scales_ptr if HAS_SCALES else weights_ptr) + scale_row * SCALES
    sums = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    up_sums = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_INPUTS):
        is_input = (inputs < INPUTS - start) | (INPUTS % BLOCK_INPUTS == 0)
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_input[None, :], other=0.0)
        is_weight = is_output[None, :] & is_input[:, None]
        scale_ptr = scales_ptrs + start // BLOCK_INPUTS
        sums = _add_product(
            sums, x, weights_ptrs + start, scale_ptr, is_weight, HAS_SCALES, HAS_FP8, PRECISION
        )
        if IS_GATED:
            up_ptrs = weights_ptrs + num_outputs * INPUTS + start
            scale_ptr += num_outputs // 128 * SCALES
            up_sums = _add_product(
                up_sums, x, up_ptrs, scale_ptr, is_weight, HAS_SCALES, HAS_FP8, PRECISION
            )
    biases_ptr = (bias_ptr if HAS_BIAS else out_ptr) + expert * HALVES * num_outputs
    row_weights = 1.0
    if HAS_ROW_WEIGHTS:
        row_weights = tl.load(row_weights_ptr + rows, mask=is_row, other=0.0)[:, None]
    sums = _weigh(sums, row_weights, biases_ptr, outputs, is_output, HAS_BIAS)
    if IS_GATED:
        biases_ptr += num_outputs
        up_sums = _weigh(up_sums, row_weights, biases_ptr, outputs, is_output, HAS_BIAS)
        sums = apply_gate(sums, up_sums, alpha, limit, IS_CLAMPED, out_ptr.dtype.element_ty)
    tl.store(
        out_ptr + to_rows[:, None] * num_outputs + outputs[None, :],
        sums.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_output[None, :],
    )


def gather_gated_triton(
    x_TK: Tensor, product: ExpertProduct, order: ExpertOrder, weights_TC: Tensor | None, chosen: int
) -> Tensor:
    """Every row's gated product `[N, F]` in the order of experts, by triton."""
    return _launch(x_TK, product, order, weights_TC, chosen)


def scatter_product_triton(x_NK: Tensor, product: ExpertProduct, order: ExpertOrder) -> Tensor:
    """The products `[N, F]` of rows in the order of experts, each where its row was, by triton."""
    return _launch(x_NK, product, order, None, 0)


def _launch(
    x: Tensor, product: ExpertProduct, order: ExpertOrder, weights_TC: Tensor | None, chosen: int
) -> Tensor:
    """Either product: gated where a token has `chosen` rows, else not."""
    assert x.is_contiguous(), "the rows are not contiguous"
    weights = product.weights_EMK
    scales = None
    num_outputs, num_inputs = weights.shape[1:]
    num_outputs //= 2 if chosen else 1
    if isinstance(weights, BlockScaledWeight):
        assert not chosen or num_outputs % BLOCK == 0, "gate and up share a block"
        assert weights.scales.is_contiguous(), "the scales are not contiguous"
        weights, scales = weights.bits, weights.scales
    assert weights.is_contiguous(), "weights_EMK is not contiguous"
    traits = find_traits(x.device)
    num_blocks, gate = len(order.experts_B), product.gate or ClampedGate(0.0, 0.0)
    out_NF = torch.empty((len(order.rows_N), num_outputs), dtype=x.dtype, device=x.device)
    launch = choose_grouped_launch(
        traits,
        order.block_rows,
        x.itemsize,
        is_gated=chosen > 0,
        is_blocked=scales is not None,
    )
    _grouped_linear_kernel[(num_blocks * -(-num_outputs // launch.outputs),)](
        x,
        weights,
        scales,
        product.bias_EM,
        weights_TC,
        out_NF,
        order.rows_N,
        order.experts_B,
        order.firsts_B,
        order.ends_B,
        num_blocks,
        num_outputs,
        gate.alpha,
        gate.limit,
        INPUTS=num_inputs,
        CHOSEN=chosen,
        IS_GATED=chosen > 0,
        IS_CLAMPED=product.gate is not None,
        HAS_BIAS=product.bias_EM is not None,
        HAS_SCALES=scales is not None,
        HAS_FP8=x.is_cuda and has_fp8(traits),
        HAS_ROW_WEIGHTS=weights_TC is not None,
        BLOCK_ROWS=order.block_rows,
        BLOCK_OUTPUTS=launch.outputs,
        BLOCK_INPUTS=launch.inputs,
        NEIGHBOURS=_NEIGHBOURS,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out_NF


def gather_gated(
    x_TK: Tensor, product: ExpertProduct, order: ExpertOrder, weights_TC: Tensor | None, chosen: int
) -> Tensor:
    """Every row's gated product `[N, F]` in the order of experts; `chosen` are a token's rows.

    With `weights_TC` a row is weighed before its experts see it. Rows of experts that are not held
    come back as anything.
    """
    assert x_TK.shape[1] == product.weights_EMK.shape[2], "x_TK and weights_EMK disagree on K"
    assert x_TK.shape[0] * chosen == len(order.rows_N), "x_TK and the order disagree on N"
    if uses_triton(x_TK):
        return gather_gated_triton(x_TK, product, order, weights_TC, chosen)
    return gather_gated_reference(x_TK, product, order, weights_TC, chosen)


def scatter_product(x_NK: Tensor, product: ExpertProduct, order: ExpertOrder) -> Tensor:
    """The products `[N, F]` of rows in the order of experts, each where its row was.

    Rows of experts that are not held come back as anything.
    """
    assert x_NK.shape[1] == product.weights_EMK.shape[2], "x_NK and weights_EMK disagree on K"
    assert x_NK.shape[0] == len(order.rows_N), "x_NK and the order disagree on N"
    if uses_triton(x_NK):
        return scatter_product_triton(x_NK, product, order)
    return scatter_product_reference(x_NK, product, order)
