"""Puts the keys and values of a step into their slots of the KV memory.

Shapes: T tokens, E = 2 · KV heads · head dim, the keys of a token followed by its values; one slot
holds one token of one layer. Slots are distinct. Any dtype, the same on both sides.
"""

from torch import Tensor


def kv_write_reference(slots_XE: Tensor, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
    """Writes `kv_TE[t]` to `slots_XE[slot_ids_T[t]]`, in plain torch."""
    slots_XE.index_copy_(0, slot_ids_T, kv_TE)


def kv_write(slots_XE: Tensor, slot_ids_T: Tensor, kv_TE: Tensor) -> None:
    """Writes `kv_TE[t]` to `slots_XE[slot_ids_T[t]]`."""
    assert kv_TE.shape == (slot_ids_T.shape[0], slots_XE.shape[1]), "kv_TE does not fit the slots"
    kv_write_reference(slots_XE, slot_ids_T, kv_TE)
