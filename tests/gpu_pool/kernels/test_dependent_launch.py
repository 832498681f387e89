"""Early launches: asked for where hardware and triton have them, nowhere else."""

import pytest
import torch

from gpu_pool.kernels import dependent_launch
from gpu_pool.kernels.dependent_launch import find_launch_options, list_launch_options
from tests.gpu_pool.kernels.triton_cases import needs_triton

OFF = {"DEPENDENT": False}


@needs_triton
def test_hopper_and_later_launch_early() -> None:
    assert list_launch_options(90) == {"DEPENDENT": True, "launch_pdl": True}
    assert list_launch_options(120) == list_launch_options(90)
    assert list_launch_options(89) == OFF


def test_a_triton_without_the_instruction_launches_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch, "gdc_wait", None)
    assert list_launch_options(90) == OFF


def test_what_a_cpu_interprets_waits_for_nothing() -> None:
    assert find_launch_options(torch.device("cpu")) == OFF
