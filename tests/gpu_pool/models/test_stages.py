"""Stages get consecutive layers, and the largest of them as little as can be."""

import pytest

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource, Split
from gpu_pool.models.stages import cut_stages


def describe(*sizes: int, embedding: int = 0) -> dict[str, ParameterSource]:
    """A network with layers of so many numbers."""

    def create(name: str, size: int) -> ParameterSource:
        return ParameterSource((CheckpointTensor(name, (size,)),), Split.WHOLE)

    ends = {name: create(name, size) for name, size in (("embedding", embedding), ("norm", 1))}
    layers = {f"layers.{i}.own": create(f"{i}", size) for i, size in enumerate(sizes)}
    return ends | layers | {"head": create("head", embedding)}


def test_the_largest_stage_is_as_small_as_can_be() -> None:
    assert cut_stages(describe(4, 4, 4, 4), 4, 2) == [range(2), range(2, 4)]
    assert cut_stages(describe(12, 4, 4, 4), 4, 2) == [range(1), range(1, 4)]
    assert cut_stages(describe(4, 4, 4, 4, 4, 4, embedding=8), 6, 3) == [
        range(1),
        range(1, 5),
        range(5, 6),
    ]
    assert cut_stages(describe(*[4] * 11), 11, 10)[0] == range(1)  # layer 10 is not layer 1


def test_a_stage_has_a_layer_at_least() -> None:
    assert cut_stages(describe(4, 4), 2, 2) == [range(1), range(1, 2)]
    with pytest.raises(CheckpointError, match="pipeline_parallel is 3; the model has 2 layers"):
        cut_stages(describe(4, 4), 2, 3)
