"""Which layers each stage of a pipeline holds."""

from collections.abc import Mapping
from itertools import pairwise

from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.parameters import ParameterSource, count_parameters


def cut_stages(
    parameters: Mapping[str, ParameterSource], num_layers: int, num_stages: int
) -> list[range]:
    """Consecutive layers for each stage, so that the largest stage has the fewest parameters.

    The first stage has the embedding, too, and the last the head. Raises: `CheckpointError` where
    there are fewer layers than stages.
    """
    if num_stages > num_layers:
        raise CheckpointError(
            f"pipeline_parallel is {num_stages}; the model has {num_layers} layers."
        )

    def measure(prefix: str) -> int:
        return count_parameters({k: v for k, v in parameters.items() if k.startswith(prefix)})

    ends = [0]
    for layer in range(num_layers):
        ends.append(ends[-1] + measure(f"layers.{layer}."))
    before, behind = measure("embedding"), measure("norm") + measure("head")
    # best[end]: the largest of the stages so far, and where they end.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(num_stages):
        left = num_stages - stage - 1
        further: dict[int, tuple[int, tuple[int, ...]]] = {}
        for first, (largest, cuts) in best.items():
            for end in range(first + 1, num_layers - left + 1) if left else (num_layers,):
                size = ends[end] - ends[first] + before * (stage == 0) + behind * (not left)
                value = (max(largest, size), (*cuts, end))
                if end not in further or value < further[end]:
                    further[end] = value
        best = further
    cuts = (0, *best[num_layers][1])
    return [range(first, end) for first, end in pairwise(cuts)]
