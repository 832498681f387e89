"""What stands before and behind a decoder's layers, each rank holding a part of the vocabulary.

Shapes: T tokens, R rows that sample, V vocabulary (a rank's part of it), D hidden size.
"""

from torch import Tensor

from gpu_pool.kernels.linear import NativeWeight, read_rows
from gpu_pool.layers.linear import Linear
from gpu_pool.parallel.tensor_group import TensorGroup


class Embedding:
    """States by token id."""

    __slots__ = ("_group", "weight_VD")

    def __init__(self, weight_VD: Tensor | NativeWeight, group: TensorGroup) -> None:
        """`weight_VD` has the rows of this rank's part; it may be packed as the head is."""
        self.weight_VD = weight_VD
        self._group = group

    @property
    def num_rows(self) -> int:
        """Tokens of this rank's part."""
        weight = self.weight_VD
        return weight.num_outputs if isinstance(weight, NativeWeight) else len(weight)

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        """The states `[T, D]`: each rank looks up its own tokens, the others add nothing."""
        if self._group.size == 1:
            return read_rows(self.weight_VD, token_ids_T)
        rows_T = token_ids_T - self._group.rank * self.num_rows
        is_elsewhere_T = (rows_T < 0) | (rows_T >= self.num_rows)
        states_TD = read_rows(self.weight_VD, rows_T.clamp(0, self.num_rows - 1))
        return self._group.add_up(states_TD.masked_fill_(is_elsewhere_T[:, None], 0))


class VocabularyHead:
    """Logits by hidden states."""

    __slots__ = ("_group", "_head")

    def __init__(self, weight_VD: Tensor, group: TensorGroup) -> None:
        """`weight_VD` has the rows of this rank's part."""
        self._head = Linear(weight_VD)
        self._group = group

    @property
    def readable(self) -> NativeWeight | None:
        """The matrix where it is packed for our own kernels, which read its rows in that form."""
        weight = self._head.weight
        return weight if isinstance(weight, NativeWeight) and not weight.group_size else None

    def __call__(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32, of the whole vocabulary on the group's first rank."""
        return self._group.join_columns(self._head(hidden_RD).float())
