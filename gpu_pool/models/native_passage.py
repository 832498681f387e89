"""The layers of a dense decoder as one native call a step, where all of them are what it computes.

A step of few tokens has hundreds of short operations; one call spares Python between them, and
threads, which otherwise meet at the end of each, meet at the end of the step. Bits are the same.
Shapes: T tokens of a step, D hidden size. Read next: `gpu_pool/kernels/cpu/layers.cpp`.
"""

import ctypes

import torch
from torch import Tensor

from gpu_pool.attention.native_batch import NativeBatch
from gpu_pool.kernels.cpu.calls import (
    AttentionCall,
    LayerCall,
    MatrixCall,
    RotationCall,
    StepCall,
)
from gpu_pool.kernels.cpu.current import reads_weight, turns_heads
from gpu_pool.kernels.cpu.library import NativeKernels
from gpu_pool.kernels.linear import NativeWeight
from gpu_pool.kernels.silu_mul import silu_mul
from gpu_pool.layers.decoder_step import DecoderStep
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.grouped_attention import GroupedAttention
from gpu_pool.layers.linear import Linear
from gpu_pool.models.decoder_layer import Passage, PreNormLayer


class NativePassage:
    """The way through all layers."""

    def __init__(self, kernels: NativeKernels, passage: Passage, eps: float) -> None:
        """The passage has been found to be native; what it leads to must not move."""
        self._kernels = kernels
        self._layers = (LayerCall * len(passage))(
            *[_describe_layer(layer, next_norm_D) for layer, next_norm_D in passage]
        )
        self._passage = passage  # its memory is what the calls point to
        self._eps = eps

    def can_run(self, passage: Passage, step: DecoderStep) -> bool:
        """True for a step of these very layers whose memory and rotations native kernels read."""
        return (
            passage is self._passage
            and all(_is_native(group.batch, group.cache.dtype) for group in step.groups)
            and all(table.dtype == torch.bfloat16 for pair in step.rotations for table in pair)
            and all(cos_TH.stride() == sin_TH.stride() for cos_TH, sin_TH in step.rotations)
        )

    def run(self, states_TD: Tensor, residual_TD: Tensor, step: DecoderStep) -> Tensor:
        """The normed hidden states `[T, D]`; both tensors are overwritten."""
        num_tokens = states_TD.shape[0]
        assert states_TD.is_contiguous(), "the rows of states_TD lie apart"
        assert residual_TD.is_contiguous(), "the rows of residual_TD lie apart"
        memory = torch.empty(
            self._kernels.measure_layers(self._layers, num_tokens), dtype=torch.uint8
        )
        groups = (AttentionCall * len(step.groups))(
            *[_describe_group(group.batch) for group in step.groups]
        )
        rotations = (RotationCall * len(step.rotations))(
            *[
                RotationCall(cos_TH.data_ptr(), sin_TH.data_ptr(), cos_TH.stride(0))
                for cos_TH, sin_TH in step.rotations
            ]
        )
        call = StepCall(
            groups=ctypes.addressof(groups),
            rotations=ctypes.addressof(rotations),
            states=states_TD.data_ptr(),
            residual=residual_TD.data_ptr(),
            memory=memory.data_ptr(),
            num_tokens=num_tokens,
            eps=self._eps,
        )
        self._kernels.run_layers(self._layers, call)
        return states_TD


def join_natively(passage: Passage, eps: float) -> NativePassage | None:
    """The passage in one call; None where some layer is another than that call computes."""
    if not passage or not all(_is_native_layer(*part) for part in passage):
        return None
    attention = passage[0][0].attention
    assert isinstance(attention, GroupedAttention)
    assert isinstance(attention.qkv.weight, NativeWeight)
    return NativePassage(attention.qkv.weight.kernels, passage, eps)


def _is_native_layer(layer: PreNormLayer, next_norm_D: Tensor | None) -> bool:
    """True for grouped attention and a gated network by silu, all in forms that kernels read."""
    attention, network = layer.attention, layer.feed_forward
    if not (isinstance(attention, GroupedAttention) and isinstance(network, GatedMlp)):
        return False
    products = (attention.qkv, attention.o, network.gate_up, network.down)
    norms = [layer.post_norm_D, next_norm_D]
    if attention.norm is not None:
        norms.append(attention.norm.weight_XH)
    return (
        network.gate is silu_mul
        and attention.form.value_dim is None
        and turns_heads(attention.sizes.head_dim)
        and all(_is_native_product(product) for product in products)
        and all(weight is not None and reads_weight(weight) for weight in norms)
    )


def _is_native_product(product: Linear) -> bool:
    bias = product.bias
    has_bias = bias is None or (bias.dtype == torch.bfloat16 and bias.is_contiguous())
    return isinstance(product.weight, NativeWeight) and has_bias


def _is_native(batch: object, dtype: torch.dtype) -> bool:
    return isinstance(batch, NativeBatch) and dtype == torch.bfloat16


def _describe_layer(layer: PreNormLayer, next_norm_D: Tensor | None) -> LayerCall:
    attention, network = layer.attention, layer.feed_forward
    assert isinstance(attention, GroupedAttention)
    assert isinstance(network, GatedMlp)
    assert next_norm_D is not None
    sizes, place, norm, form = attention.sizes, attention.place, attention.norm, attention.form
    return LayerCall(
        qkv=_describe_product(attention.qkv),
        o=_describe_product(attention.o),
        gate_up=_describe_product(network.gate_up),
        down=_describe_product(network.down),
        head_norm=None if norm is None else norm.weight_XH.data_ptr(),
        post_norm=layer.post_norm_D.data_ptr(),
        next_norm=next_norm_D.data_ptr(),
        sinks=None if form.sinks_N is None else form.sinks_N.data_ptr(),
        is_head_norm_fp32=norm is not None and norm.weight_XH.dtype == torch.float32,
        is_post_norm_fp32=layer.post_norm_D.dtype == torch.float32,
        is_next_norm_fp32=next_norm_D.dtype == torch.float32,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        group=place.group,
        index=place.index,
        rotation=-1 if place.rotation is None else place.rotation,
        scale=form.scale or sizes.head_dim**-0.5,
        soft_cap=form.softcap or 0.0,
        head_eps=0.0 if norm is None else norm.eps,
    )


def _describe_product(product: Linear) -> MatrixCall:
    weight = product.weight
    assert isinstance(weight, NativeWeight)
    return MatrixCall(
        packed=weight.packed.data_ptr(),
        bias=None if product.bias is None else product.bias.data_ptr(),
        num_inputs=weight.num_inputs,
        num_outputs=weight.num_outputs,
        group_size=weight.group_size,
    )


def _describe_group(batch: object) -> AttentionCall:
    """What holds for all layers of a group, its first layer's slots included."""
    assert isinstance(batch, NativeBatch)
    call = AttentionCall.from_buffer_copy(batch.call)
    call.slot_ids = batch.slot_ids.data_ptr()
    return call
