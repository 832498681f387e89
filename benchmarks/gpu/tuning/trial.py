"""One setting of one case, and what trying all of them shows.

Must not know kernels. Units: microseconds. Read next: `decode`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from benchmarks.gpu.timing import DEVICE, IS_GPU, measure_chain_ms

_SHOWN: Final = 6
_SAMPLES: Final = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """`calls` do the same with other memory each, and are timed as a chain."""

    case: str
    setting: str
    calls: Sequence[Callable[[], object]]
    is_chosen: bool = False
    """What is launched today, or another's kernel: shown whatever it takes."""


def can_run(trial: Trial) -> bool:
    """False where the setting asks for more than this GPU has. Raises: what else is wrong."""
    try:
        trial.calls[0]()
    except Exception as error:
        if type(error).__name__ == "OutOfResources":  # triton's, which need not be installed
            return False
        raise
    return True


def draw(*shape: int) -> torch.Tensor:
    """Noise; on a CPU in fp32, for the interpreter multiplies bf16 wrongly."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16 if IS_GPU else torch.float32)


@dataclass(slots=True)
class _Times:
    """Of one case, by setting."""

    chosen: dict[str, float] = field(default_factory=dict[str, float])
    others: dict[str, float] = field(default_factory=dict[str, float])


def list_results(trials: Iterable[Trial]) -> list[str]:
    """A line for each case: what is chosen, and the best settings."""
    cases: dict[str, _Times] = {}
    for trial in trials:
        if can_run(trial):
            times = cases.setdefault(trial.case, _Times())
            kind = times.chosen if trial.is_chosen else times.others
            kind[trial.setting] = 1000 * min(measure_chain_ms(trial.calls, _SAMPLES))
    return [
        f"{case}: {_describe(times.chosen)} | best: {_describe(times.others)}"
        for case, times in cases.items()
    ]


def _describe(times: dict[str, float]) -> str:
    """The shortest, the first of all in front."""
    found = sorted((time_us, setting) for setting, time_us in times.items())
    return "; ".join(f"{time_us:.1f} us {setting}" for time_us, setting in found[:_SHOWN])
