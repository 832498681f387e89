"""What a CUDA graph does, on a CPU: the operators that a call made, made again on the same memory.

As in a graph, numbers that the host knew while recording are part of the recording, results lie
where they lay then, and whatever the host would have to look at or to hand over is refused. Kernels
of our own are one operator each; their references may do what operators may not.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_REFUSED = {
    torch.ops.aten._local_scalar_dense.default: "the host reads what the device computes",
    torch.ops.aten.lift_fresh.default: "the host hands over a new tensor",
}
_LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_listening: list["Tape"] = []


class TapeRecorder:
    """A `Recorder` for tensors of a CPU; what it records takes effect meanwhile."""

    def record(self, call: Callable[[], Tensor]) -> "Tape":
        """The operators that `call` uses. Raises: `AssertionError` for one that no graph holds."""
        tape = Tape()
        _listening.append(tape)
        try:
            with _Listener():
                tape.result = call()
        finally:
            _listening.pop()
        return tape


class Tape:
    """A `Recording` of operators."""

    def __init__(self) -> None:
        """Nothing is recorded."""
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.result = torch.empty(0)

    def replay(self) -> Tensor:
        """Makes the calls again."""
        for operator, args, kwargs, old in self.calls:
            new = operator(*args, **kwargs)
            if not _writes(operator):
                for target, source in zip(_list_tensors(old), _list_tensors(new), strict=True):
                    if target.data_ptr() != source.data_ptr():
                        target.copy_(source)
        return self.result


def as_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as one operator of the tape, whatever it does inside."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        if not _listening:
            return function(*args, **kwargs)
        with _disable_current_modes():
            result = function(*args, **kwargs)
        _listening[-1].calls.append((function, args, kwargs, result))
        return result

    return launch


class _Listener(TorchDispatchMode):
    """Notes each operator on its way."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        assert func not in _REFUSED, _REFUSED.get(func)
        assert not any(tag in func.tags for tag in _LOOKS), f"{func} depends on what it finds"
        result = func(*args, **kwargs)
        if "empty" not in func.__name__:  # memory whose content nobody has made
            _listening[-1].calls.append((func, args, kwargs, result))
        return result


def _writes(operator: Any) -> bool:
    """The operator changes what it is given."""
    schema = getattr(operator, "_schema", None)
    arguments = [] if schema is None else schema.arguments
    return any(a.alias_info is not None and a.alias_info.is_write for a in arguments)


def _list_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _list_tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _list_tensors(getattr(value, field.name))
