"""What is compiled: a kernel with the constants and launch options of a shape that is served.

Lists of variants lie beside this file, one per topic; `compile_kernels` brings them together.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from gpu_pool.kernels.dependent_launch import list_launch_options
from gpu_pool.kernels.gpu_traits import GpuTraits


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as some model launches it."""

    name: str
    kernel: Any
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    types: dict[str, str] = field(default_factory=dict[str, str])
    """Of arguments that are neither bf16 pointers (`…_ptr`) nor int32 (all others)."""
    is_between: bool = False
    """Larger and smaller ones of its kernel are listed, too: left to the long proofs."""

    def find_type(self, name: str) -> str:
        """The type of the argument `name`, as signatures spell it."""
        if name in self.constants:
            return "constexpr"
        return self.types.get(name, "*bf16" if name.endswith("_ptr") else "i32")

    def launched_early(self, traits: GpuTraits) -> "Variant":
        """The same with the launch options of kernels that wait for their inputs themselves."""
        options = list_launch_options(traits.capability)
        constants = {**self.constants, "DEPENDENT": options.pop("DEPENDENT")}
        return replace(self, constants=constants, options={**self.options, **options})
