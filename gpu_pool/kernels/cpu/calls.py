"""What kernels are told, as C lays it out, in the order of `kernels.h` and `layers.cpp`.

Addresses must stay alive during the call; whoever fills them in has checked shapes.
Read next: `library`.
"""

import ctypes
from typing import Any, Final

_POINTER: Final = ctypes.c_void_p
_LONG: Final = ctypes.c_int64


def _list_fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class AttentionCall(ctypes.Structure):
    """A step's keys and values to write, and its queries."""

    _fields_ = (
        *_list_fields(_POINTER, "q kv slot_ids slots out tables starts lengths sinks"),
        *_list_fields(_LONG, "q_stride kv_stride table_stride num_sequences num_heads"),
        *_list_fields(_LONG, "num_kv_heads head_dim value_dim slot_elements layer num_layers"),
        *_list_fields(_LONG, "block_size window is_chunked"),
        *_list_fields(ctypes.c_float, "scale soft_cap"),
    )


class TurnCall(ctypes.Structure):
    """Heads to norm and turn."""

    _fields_ = (
        *_list_fields(_POINTER, "heads weight cos sin"),
        *_list_fields(_LONG, "token_stride table_stride num_tokens num_turned head_dim"),
        *_list_fields(_LONG, "is_weight_fp32"),
        *_list_fields(ctypes.c_float, "eps"),
    )


class MatrixCall(ctypes.Structure):
    """A packed weight with its bias."""

    _fields_ = (
        *_list_fields(_POINTER, "packed bias"),
        *_list_fields(_LONG, "num_inputs num_outputs group_size"),
    )


class LayerCall(ctypes.Structure):
    """A layer of a dense decoder; `next_norm` is the norm behind it."""

    _fields_ = (
        *_list_fields(MatrixCall, "qkv o gate_up down"),
        *_list_fields(_POINTER, "head_norm post_norm next_norm sinks"),
        *_list_fields(_LONG, "is_head_norm_fp32 is_post_norm_fp32 is_next_norm_fp32"),
        *_list_fields(_LONG, "num_heads num_kv_heads head_dim group index rotation"),
        *_list_fields(ctypes.c_float, "scale soft_cap head_eps"),
    )


class RotationCall(ctypes.Structure):
    """A step's cosines and signed sines."""

    _fields_ = (*_list_fields(_POINTER, "cos sin"), *_list_fields(_LONG, "stride"))


class StepCall(ctypes.Structure):
    """A step through layers; `memory` is what `NativeKernels.measure_layers` has asked for."""

    _fields_ = (
        *_list_fields(_POINTER, "groups rotations states residual memory"),
        *_list_fields(_LONG, "num_tokens"),
        *_list_fields(ctypes.c_float, "eps"),
    )
