"""What stands before and behind a decoder's layers, each rank holding a part of the vocabulary.

Shapes: T tokens, R rows that sample, V vocabulary (a rank's part of it), D hidden size.
"""

from torch import Tensor

from gpu_pool.layers.linear import Linear
from gpu_pool.parallel.tensor_group import TensorGroup


class Embedding:
    """States by token id."""

    __slots__ = ("_group", "weight_VD")

    def __init__(self, weight_VD: Tensor, group: TensorGroup) -> None:
        """`weight_VD` has the rows of this rank's part."""
        self.weight_VD = weight_VD
        self._group = group

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        """The states `[T, D]`: each rank looks up its own tokens, the others add nothing."""
        if self._group.size == 1:
            return self.weight_VD.index_select(0, token_ids_T)
        num_rows = self.weight_VD.shape[0]
        rows_T = token_ids_T - self._group.rank * num_rows
        is_elsewhere_T = (rows_T < 0) | (rows_T >= num_rows)
        states_TD = self.weight_VD.index_select(0, rows_T.clamp(0, num_rows - 1))
        return self._group.add_up(states_TD.masked_fill_(is_elsewhere_T[:, None], 0))


class VocabularyHead:
    """Logits by hidden states."""

    __slots__ = ("_group", "_head")

    def __init__(self, weight_VD: Tensor, group: TensorGroup) -> None:
        """`weight_VD` has the rows of this rank's part."""
        self._head = Linear(weight_VD)
        self._group = group

    def __call__(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]` in fp32, of the whole vocabulary on the group's first rank."""
        return self._group.join_columns(self._head(hidden_RD).float())
