"""The loaded kernels, as Python calls them.

Owns the C side's names and types. The library takes addresses: whoever calls has checked shapes.
Read next: `build` (where the library comes from), `calls`, `gpu_pool.kernels.linear`,
`gpu_pool.attention.native_batch` (who calls).
"""

import ctypes
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from gpu_pool.kernels.cpu.build import NativeUnavailableError, find_library
from gpu_pool.kernels.cpu.calls import AttentionCall, LayerCall, StepCall, TurnCall
from gpu_pool.kernels.cpu.levels import LEVELS, Level, list_levels, read_cpu_flags
from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.large_pages import create_whole_pages

MAX_LANES: Final = 16
"""Floats of the widest vector of any level."""
_POINTER: Final = ctypes.c_void_p
_LONG: Final = ctypes.c_long


class NativeKernels:
    """The kernels at one level, for tensors on the CPU."""

    def __init__(self, level: Level, path: Path) -> None:
        """Loads the library. Raises: `NativeUnavailableError`."""
        self.level = level
        try:
            library: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailableError(str(error)) from error
        if library.hearth_prepare():
            raise NativeUnavailableError(f"the system does not let this process use {level.name}")
        self._measure = library.hearth_packed_size
        self._measure.argtypes, self._measure.restype = [_LONG] * 2, _LONG
        self._pack = library.hearth_pack
        self._pack.argtypes, self._pack.restype = [_POINTER, _LONG, _POINTER, *[_LONG] * 3], None
        self._read_rows = library.hearth_read_rows
        self._read_rows.argtypes = [*[_POINTER] * 3, *[_LONG] * 4]
        self._read_rows.restype = ctypes.c_int
        self._measure_int4 = library.hearth_packed_int4_size
        self._measure_int4.argtypes, self._measure_int4.restype = [_LONG] * 3, _LONG
        self._pack_int4 = library.hearth_pack_int4
        self._pack_int4.argtypes, self._pack_int4.restype = [*[_POINTER] * 4, *[_LONG] * 4], None
        self._multiply = library.hearth_multiply
        self._multiply.argtypes = [_POINTER, _LONG, *[_POINTER] * 3, *[_LONG] * 5]
        self._multiply.restype = None
        self._attend = library.hearth_attend
        self._attend.argtypes, self._attend.restype = [ctypes.POINTER(AttentionCall), _LONG], None
        self._add_norm = library.hearth_add_norm
        self._add_norm.argtypes = [
            *[_POINTER, _LONG, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG],
            *[ctypes.c_float, _LONG],
        ]
        self._add_norm.restype = None
        self._silu_mul = library.hearth_silu_mul
        self._silu_mul.argtypes = [_POINTER, _LONG, _POINTER, *[_LONG] * 3]
        self._silu_mul.restype = None
        self._turn = library.hearth_turn
        self._turn.argtypes, self._turn.restype = [ctypes.POINTER(TurnCall), _LONG], None
        self._measure_layers = library.hearth_measure_layers
        self._measure_layers.argtypes = [ctypes.POINTER(LayerCall), _LONG, _LONG]
        self._measure_layers.restype = _LONG
        self._run_layers = library.hearth_run_layers
        self._run_layers.argtypes = [
            *[ctypes.POINTER(LayerCall), _LONG],
            *[ctypes.POINTER(StepCall), _LONG],
        ]
        self._run_layers.restype = None

    def measure(self, num_outputs: int, num_inputs: int) -> int:
        """Bytes of a packed weight."""
        return int(self._measure(num_inputs, num_outputs)) * torch.bfloat16.itemsize

    def pack(self, weight_MK: Tensor | Int4Weight) -> Tensor:
        """A weight in bf16, or bytes of one of four bits, in the form that `multiply` reads."""
        if isinstance(weight_MK, Int4Weight):
            return self._pack_groups(weight_MK)
        num_outputs, num_inputs = weight_MK.shape
        weight_MK = weight_MK if weight_MK.stride(1) == 1 else weight_MK.contiguous()
        size = self._measure(num_inputs, num_outputs)
        memory = create_whole_pages(size * torch.bfloat16.itemsize)
        packed = torch.frombuffer(memory, dtype=torch.bfloat16, count=size)
        self._pack(
            weight_MK.data_ptr(),
            weight_MK.stride(0),
            packed.data_ptr(),
            num_inputs,
            num_outputs,
            torch.get_num_threads(),
        )
        return packed

    def read_rows(self, packed: Tensor, ids_T: Tensor, num_outputs: int, num_inputs: int) -> Tensor:
        """Rows `[T, K]` of a packed weight in bf16, bit by bit as they were before.

        Raises: `IndexError` for an id that is none of its rows.
        """
        ids_T = ids_T.to(torch.int64).contiguous()
        rows_TK = torch.empty((len(ids_T), num_inputs), dtype=torch.bfloat16)
        if self._read_rows(
            packed.data_ptr(),
            ids_T.data_ptr(),
            rows_TK.data_ptr(),
            len(ids_T),
            num_inputs,
            num_outputs,
            torch.get_num_threads(),
        ):
            raise IndexError(f"a row is not one of {num_outputs}")
        return rows_TK

    def measure_int4(self, num_outputs: int, num_inputs: int, group_size: int) -> int:
        """Bytes of a packed weight of four bits; 0 for groups that `multiply` does not read."""
        return int(self._measure_int4(num_inputs, num_outputs, group_size))

    def _pack_groups(self, weight: Int4Weight) -> Tensor:
        """As `pack`."""
        num_outputs, num_inputs = weight.shape
        size = self.measure_int4(num_outputs, num_inputs, weight.group_size)
        assert size, f"groups of {weight.group_size} inputs are not read"
        packed = torch.frombuffer(create_whole_pages(size), dtype=torch.uint8, count=size)
        parts = [
            part.contiguous()
            for part in (weight.numbers, weight.scales.float(), weight.zeros.to(torch.uint8))
        ]
        self._pack_int4(
            *[part.data_ptr() for part in (*parts, packed)],
            num_inputs,
            num_outputs,
            weight.group_size,
            torch.get_num_threads(),
        )
        return packed

    def multiply(
        self,
        x_TK: Tensor,
        packed: Tensor,
        bias_M: Tensor | None,
        num_outputs: int,
        group_size: int = 0,
    ) -> Tensor:
        """The product `[T, M]` of bf16 rows, whose elements lie together, with a packed weight; one
        of four bits has a `group_size`.
        """
        num_rows, num_inputs = x_TK.shape
        out_TM = torch.empty((num_rows, num_outputs), dtype=torch.bfloat16)
        self._multiply(
            x_TK.data_ptr(),
            x_TK.stride(0),
            packed.data_ptr(),
            None if bias_M is None else bias_M.data_ptr(),
            out_TM.data_ptr(),
            num_rows,
            num_inputs,
            num_outputs,
            group_size,
            torch.get_num_threads(),
        )
        return out_TM

    def attend(self, call: AttentionCall) -> None:
        """Writes a step's keys and values, in bf16, to their slots and attends, as `call` says."""
        self._attend(call, torch.get_num_threads())

    def add_norm(
        self, x_TD: Tensor, residual_TD: Tensor | None, weight_D: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The normed sum and the sum of bf16 rows whose elements lie together; the norm of `x_TD`
        and itself without a residual. Weights are bf16 or fp32.
        """
        num_rows, size = x_TD.shape
        out_TD = torch.empty((num_rows, size), dtype=torch.bfloat16)
        sum_TD = x_TD if residual_TD is None else torch.empty_like(out_TD)
        self._add_norm(
            x_TD.data_ptr(),
            x_TD.stride(0),
            None if residual_TD is None else residual_TD.data_ptr(),
            0 if residual_TD is None else residual_TD.stride(0),
            weight_D.data_ptr(),
            weight_D.dtype == torch.float32,
            sum_TD.data_ptr(),
            out_TD.data_ptr(),
            num_rows,
            size,
            eps,
            torch.get_num_threads(),
        )
        return out_TD, sum_TD

    def silu_mul(self, gate_up_T2F: Tensor) -> Tensor:
        """The gated values `[T, F]` of bf16 rows whose elements lie together."""
        num_rows, size = gate_up_T2F.shape[0], gate_up_T2F.shape[1] // 2
        out_TF = torch.empty((num_rows, size), dtype=torch.bfloat16)
        self._silu_mul(
            gate_up_T2F.data_ptr(),
            gate_up_T2F.stride(0),
            out_TF.data_ptr(),
            num_rows,
            size,
            torch.get_num_threads(),
        )
        return out_TF

    def turn(self, call: TurnCall) -> None:
        """Norms and turns heads in place, as `call` says."""
        self._turn(call, torch.get_num_threads())

    def measure_layers(self, layers: "ctypes.Array[LayerCall]", num_tokens: int) -> int:
        """Bytes that `run_layers` works in for a step of so many tokens."""
        return int(self._measure_layers(layers, len(layers), num_tokens))

    def run_layers(self, layers: "ctypes.Array[LayerCall]", step: StepCall) -> None:
        """Takes a step's states through all layers, in place."""
        self._run_layers(layers, len(layers), step, torch.get_num_threads())


def load_kernels(folder: Path, most: Level = LEVELS[0]) -> NativeKernels:
    """The kernels at the best level up to `most` that this machine can run.

    Raises: `NativeUnavailableError` saying why there are none.
    """
    flags = read_cpu_flags()
    if flags is None:
        raise NativeUnavailableError("only x86-64 under Linux has native kernels")
    levels = list_levels(flags, most)
    for candidate in levels[:-1]:
        try:
            return NativeKernels(candidate, find_library(candidate, folder))
        except NativeUnavailableError:
            continue
    return NativeKernels(levels[-1], find_library(levels[-1], folder))
