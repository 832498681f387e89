"""Whether a core's weights are on the device, and what the server is told when they move.

Owns the answers to `Sleep` and `Wake`; must not know sequences, only how many there are.
Read next: `core` and `encoder_core` (the callers), `gpu_pool.plan` (what an executor promises).
"""

from collections.abc import Callable

from gpu_pool.engine.messages import CoreSlept, CoreWoken, SleepRefused
from gpu_pool.engine.transport import Transport
from gpu_pool.plan import EncoderExecutor, Executor


class SleepCycle:
    """One executor, awake at first."""

    def __init__(
        self,
        executor: Executor | EncoderExecutor,
        transport: Transport,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds."""
        self._executor = executor
        self._transport = transport
        self._clock = clock
        self._is_asleep = False
        self._has_just_woken = False

    @property
    def is_asleep(self) -> bool:
        """True while nothing can be computed."""
        return self._is_asleep

    def refuse(self, num_sequences: int) -> None:
        """Says that sequences keep the core awake."""
        self._transport.send(SleepRefused(num_sequences))

    def sleep(self) -> None:
        """Puts the weights into the host's memory; nothing moves when they are there already."""
        began_s, num_bytes = self._clock(), 0
        if not self._is_asleep:
            num_bytes = self._executor.sleep()
            self._is_asleep = True
        self._transport.send(CoreSlept(self._clock() - began_s, num_bytes))

    def wake(self) -> None:
        """Puts the weights back on the device; nothing moves when they are there already. They may
        be on their way yet when this is told: the executor's first step takes them as they come.
        """
        began_s, num_bytes = self._clock(), 0
        if self._is_asleep:
            num_bytes = self._executor.wake()
            self._is_asleep = False
            self._has_just_woken = True
        self._transport.send(CoreWoken(self._clock() - began_s, num_bytes))

    def is_ordinary_step(self) -> bool:
        """True when the step that is over says how fast the model computes. The first one after a
        wake does not: it has waited for weights, too.
        """
        has_just_woken, self._has_just_woken = self._has_just_woken, False
        return not has_just_woken
