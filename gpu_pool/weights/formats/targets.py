"""Which of compressed-tensors' groups a module belongs to, by its name alone.

No torch, so that the server's process can ask. Read next: `compressed_tensors`.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from gpu_pool.weights.formats.name_pattern import read_pattern

EVERY_MODULE: Final = "Linear"
PATTERN: Final = "re:"
"""Begins an expression where modules are named."""
GroupT = TypeVar("GroupT")


def find_group(weight: str, groups: Mapping[str, GroupT]) -> GroupT | None:
    """What is there for a weight, by target: a module's name, an expression behind `re:`, or
    `Linear` for every module, in this order.

    Raises: `re.error`, `OverflowError` or `RecursionError` for an expression that is none or is
    not supported; `CheckpointError` for a name that is too long for one.
    """
    module = weight.removesuffix(".weight")
    if module in groups:
        return groups[module]
    for target, group in groups.items():
        pattern = target.removeprefix(PATTERN)
        if pattern != target and read_pattern(pattern).matches(module):
            return group
    return groups.get(EVERY_MODULE)
