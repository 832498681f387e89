"""Every tensor that a model holds, found without asking the model.

Whatever a family keeps, packed or derived, is found by following references as the garbage
collector does; code and classes are not followed, they lead everywhere.
Read next: `cpu_memory`, which moves what is found.
"""

import gc
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

KindT = TypeVar("KindT")
_UNFOLLOWED: Final = (type, types.ModuleType, types.FrameType, torch.dtype, torch.device, str, int)


def find_tensors(root: object) -> list[Tensor]:
    """The tensors that `root` leads to, each memory once."""
    found: dict[int, Tensor] = {}
    for held in _walk(root):
        if isinstance(held, Tensor):
            found.setdefault(_identify(held), held)
    return list(found.values())


def find_held(root: object, kind: type[KindT]) -> list[KindT]:
    """The objects of one kind that `root` leads to, each once."""
    return list({id(held): held for held in _walk(root) if isinstance(held, kind)}.values())


def find_portions(root: object, parts: Sequence[object]) -> list[list[Tensor]]:
    """All tensors that `root` leads to, each memory once, by when `parts` come to need them.

    The first portion has, besides what the first part leads to, all that belongs to no part.
    """
    if not parts:
        return [find_tensors(root)]
    portions: list[list[Tensor]] = []
    seen: set[int] = set()
    for part in parts:
        fresh = {_identify(tensor): tensor for tensor in find_tensors(part)}
        portions.append([tensor for key, tensor in fresh.items() if key not in seen])
        seen |= fresh.keys()
    others = [tensor for tensor in find_tensors(root) if _identify(tensor) not in seen]
    portions[0] = others + portions[0]
    return portions


def _walk(root: object) -> Iterator[Any]:
    """All that `root` leads to; tensors, which lead nowhere, as often as they are met."""
    seen: set[int] = {id(root)}
    waiting: list[Any] = [root]
    while waiting:
        for held in _list_held(waiting.pop()):
            if isinstance(held, Tensor):
                yield held
            elif id(held) not in seen and not isinstance(held, _UNFOLLOWED):
                seen.add(id(held))
                waiting.append(held)
                yield held


def _list_held(holder: Any) -> list[Any]:
    """What an object refers to; of a function only what it has closed over or is bound to."""
    if isinstance(holder, types.FunctionType):
        return list(holder.__closure__ or ())
    return gc.get_referents(holder)


def _identify(tensor: Tensor) -> int:
    """The same for tensors that share memory."""
    if tensor.is_mkldnn:
        return torch.ops.mkldnn.data_ptr(tensor)
    return tensor.untyped_storage().data_ptr()
