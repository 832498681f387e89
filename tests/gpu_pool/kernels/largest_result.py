"""How much a computation writes: the size of the largest tensor that it makes."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestResult(TorchDispatchMode):
    """Notes it while it is entered; what is a view, or changed in place, was there before."""

    def __init__(self) -> None:
        """Nothing has been made."""
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        known = {one.untyped_storage().data_ptr() for one in args if isinstance(one, Tensor)}
        for one in result if isinstance(result, tuple) else (result,):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in known:
                self.num_elements = max(self.num_elements, one.numel())
        return result
