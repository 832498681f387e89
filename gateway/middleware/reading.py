"""When a connection's socket is read: never while something that was read before still waits.

Read next: `gateway.middleware.client_connection`.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class ReadingControl(FlowControl):
    """uvicorn's flow control, whose reading is resumed by whoever wants a body, with a veto."""

    def __init__(self, transport: asyncio.Transport, has_unserved: Callable[[], bool]) -> None:
        """`has_unserved` is true while more would only have to be kept."""
        super().__init__(transport)
        self._has_unserved = has_unserved

    def resume_reading(self) -> None:
        """Reads on, if that is due."""
        if self.read_paused and not self._has_unserved():
            super().resume_reading()
