"""Lets a kernel be launched before the one it depends on has ended (Hopper and later).

A short kernel spends much of its time on being launched. Launched so, it is there already when what
it reads is, and waits for it on the device. `wait_for_inputs` stands before its first access to
memory, also before writes, since the kernel before may still read what is overwritten; as each
kernel of a chain waits for the one before it to end, all that came earlier has ended, too. Weights,
which no kernel writes, may be read before: between `let_next_come` and `wait_for_previous`.
Source: CUDA programming guide, "Programmatic Dependent Launch".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.triton_language import HAS_TRITON, jit, tl

try:
    if not HAS_TRITON:
        raise ImportError
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton, or none
    gdc_launch_dependents = gdc_wait = None

_OLDEST = 90


@jit
def wait_for_inputs(DEPENDENT: tl.constexpr):
    """Lets the next kernel come, then returns once the kernels before this one have ended."""
    let_next_come(DEPENDENT)
    wait_for_previous(DEPENDENT)


@jit
def let_next_come(DEPENDENT: tl.constexpr):
    """The next kernel may be launched once every program of this one has come here."""
    if DEPENDENT:
        gdc_launch_dependents()  # pyright: ignore[reportOptionalCall]


@jit
def wait_for_previous(DEPENDENT: tl.constexpr):
    """Returns once the kernels before this one have ended."""
    if DEPENDENT:
        gdc_wait()  # pyright: ignore[reportOptionalCall]


def list_launch_options(capability: int) -> dict[str, Any]:
    """What a kernel that calls `wait_for_inputs` is launched with on that generation."""
    if capability < _OLDEST or gdc_wait is None:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}


@cache
def find_launch_options(device: torch.device) -> dict[str, Any]:
    """What a kernel that calls `wait_for_inputs` is launched with on `device`."""
    if device.type != "cuda":
        return {"DEPENDENT": False}
    return list_launch_options(find_traits(device).capability)
