"""Results on their way from the device, for which nobody waits before they are needed.

The way there is `gpu_pool.kernels.device_values`. Read next: `device_lane`.
"""

import torch
from torch import Tensor


class Moment:
    """A point in the work of a device."""

    __slots__ = ("_event",)

    def __init__(self, device: torch.device) -> None:
        """What has been asked of the device so far; elsewhere than on a GPU that is over."""
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(blocking=True)
            self._event.record()

    def wait(self) -> None:
        """Returns when the device has come so far."""
        if self._event is not None:
            self._event.synchronize()


class Downloads:
    """Brings results to the host beside the steps that follow."""

    def __init__(self, device: torch.device) -> None:
        """Takes a stream of its own on a GPU."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, values: Tensor) -> "Download":
        """Begins to copy `values`, which nobody changes any more."""
        if self._stream is None:
            return Download(values, Moment(values.device))
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(values.device))
        with torch.cuda.stream(self._stream):
            host.copy_(values, non_blocking=True)
            values.record_stream(self._stream)
            moment = Moment(values.device)
        return Download(host, moment)


class Download:
    """Numbers that are on the host once `take` returns."""

    __slots__ = ("_host", "_moment")

    def __init__(self, host: Tensor, moment: Moment) -> None:
        """`host` is complete at `moment`."""
        self._host = host
        self._moment = moment

    def take(self) -> Tensor:
        """Waits for them."""
        self._moment.wait()
        return self._host
