"""A core's end of its store agent: bounded calls, and a thread that brings the store back.

A store that does not answer is away: nobody calls it then but that thread, once a second, so that
no request waits for what has failed already. An agent that ends, answers no ping, or has a call
that will not end, has all its calls ended and is started again, once nothing is left of it: the
memory that it has lent is not taken twice. Must not know what names stand for.
Read next: `mooncake_life`, `mooncake_tier` (the caller).
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Final

import structlog

from gpu_pool.kv.tiers.mooncake_life import AGENT_COMMAND, AgentLife, Answer
from gpu_pool.kv.tiers.mooncake_words import AWAY, StoreCall, StoreOp, StoreStart
from gpu_pool.kv.tiers.settings import StoreTierSettings

_BUFFER_BYTES: Final = 64 << 20
"""Memory of the library's own, for what it carries."""
_START_S: Final = 30.0
_HUNG_S: Final = 30.0
"""A call that takes longer than all of the library's own bounds will not end."""
_PROBE_S: Final = 1.0
_CARE_S: Final = 5.0
"""Between two looks at a store that is there: better this thread finds out than a request."""
_FORGOTTEN_S: Final = 15.0
"""After which a master has forgotten a client that is gone (its `client_ttl`, 10 s): until then it
tells what that one had lent as there."""
_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0)
"""Between two starts; the last one again and again."""
_LOOK_S: Final = 0.2
_NOBODY: Final = ("hearth.nobody",)


class StoreClient:
    """One agent after the other."""

    def __init__(
        self,
        settings: StoreTierSettings,
        note_change: Callable[[], None],
        command: tuple[str, ...] = AGENT_COMMAND,
    ) -> None:
        """Nothing runs before `start`; `note_change` is called by any thread when the store has
        come or gone.
        """
        self._settings = settings
        self._note_change = note_change
        self._command = command
        self._life: AgentLife | None = None
        self._is_closing = threading.Event()
        self._note_back: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kv-store", daemon=True)
        self._log = structlog.get_logger().bind(master=settings.master)
        self.is_away = True
        """No call has any prospect now."""
        self.num_calls = 0
        """Calls that reached the agent."""

    @property
    def process_id(self) -> int | None:
        """The agent's, for whoever watches it from outside."""
        life = self._life
        return None if life is None else life.process_id

    def start(self, note_back: Callable[[], None]) -> None:
        """Begins to connect; `note_back` is called by a thread whenever the store is there anew,
        and once more when it no longer tells what went with an earlier agent as there.
        """
        self._note_back = note_back
        self._thread.start()

    def call(self, op: StoreOp, *names: str, content: bytes = b"") -> Answer | None:
        """What comes of a call; None: the store is away or late, and nobody knows."""
        life = self._life
        if self.is_away or life is None:
            return None
        answer = self._ask(life, StoreCall(op, names), content)
        if answer is None:
            self._note_away()
        return answer

    def call_soon(self, op: StoreOp, *names: str) -> None:
        """Has something done that nobody waits for, if the store is there."""
        life = self._life
        if not self.is_away and life is not None:
            with contextlib.suppress(RuntimeError):  # that life has just ended
                life.call(StoreCall(op, names), b"")

    def close(self) -> None:
        """Ends the agent, and at once all calls under way, which find the store away.

        Returns within a bounded time (`AgentLife.close`), whatever store and agent do.
        """
        self._is_closing.set()
        life = self._life
        if life is not None:
            life.hang_up()
        self._thread.join()

    def _ask(self, life: AgentLife, call: StoreCall, content: bytes = b"") -> Answer | None:
        """What comes of a call within its time; None: nothing, or the store is away."""
        try:
            outcome = life.call(call, content)
        except RuntimeError:  # that life has just ended
            return None
        self.num_calls += 1
        try:
            answer = outcome.result(self._settings.call_s)
        except (TimeoutError, CancelledError, EOFError, OSError):
            outcome.cancel()
            return None
        return None if answer.code <= AWAY else answer

    def _note_away(self) -> None:
        """Nobody calls from now on."""
        was_away, self.is_away = self.is_away, True
        if not was_away and not self._is_closing.is_set():
            self._log.warning("the KV store is away: prefixes are computed meanwhile")
            self._note_change()

    def _run(self) -> None:
        """Agents one after the other, until `close`."""
        num_failed = 0
        while not self._is_closing.is_set():
            settings = self._settings
            start = StoreStart(
                settings.master,
                settings.local_host,
                settings.protocol,
                settings.segment_bytes,
                _BUFFER_BYTES,
                str(settings.network_namespace or ""),
            )
            try:
                life = AgentLife(start, self._command)
            except OSError as error:
                self._log.warning("the KV store's agent does not start", reason=error.strerror)
                self._is_closing.wait(_PAUSES_S[-1])
                continue
            try:
                is_final, was_ready = self._watch(life, is_first=num_failed == 0)
            finally:
                self._note_away()
                self._life = None
                self._end(life)
            if is_final:
                return
            num_failed = 0 if was_ready else num_failed + 1
            self._is_closing.wait(_PAUSES_S[min(num_failed, len(_PAUSES_S) - 1)])

    def _end(self, life: AgentLife) -> None:
        """Returns when nothing is left of a life, or nobody waits for that any more."""
        if life.close():
            return
        self._log.error("the KV store's agent was killed and does not go", pid=life.process_id)
        while not self._is_closing.is_set() and not life.wait_gone(_LOOK_S):
            pass

    def _watch(self, life: AgentLife, *, is_first: bool) -> tuple[bool, bool]:
        """Follows one life to its end: whether another would be of no use, and whether it served.

        What keeps it from serving is told once.
        """
        ready, waited_s = None, 0.0
        while ready is None and waited_s < _START_S and not self._is_closing.is_set():
            ready = life.wait_ready(_LOOK_S)
            waited_s += _LOOK_S
        if ready is None or ready.reason:
            if is_first and not self._is_closing.is_set():
                reason = "its agent did not come up in time" if ready is None else ready.reason
                self._log.warning("KV is not kept in the store", reason=reason)
            return ready is not None and ready.is_final, False
        self._life = life
        guard = threading.Thread(target=self._guard, args=(life,), name="kv-guard", daemon=True)
        guard.start()
        asked_s, forgotten_s = float("-inf"), float("inf")
        while guard.is_alive():
            if time.monotonic() - asked_s >= (_PROBE_S if self.is_away else _CARE_S):
                if self._ask(life, StoreCall(StoreOp.LOOK_UP, _NOBODY)) is None:
                    self._note_away()
                elif self.is_away:
                    self._note_there()
                    forgotten_s = time.monotonic() + _FORGOTTEN_S
                elif time.monotonic() >= forgotten_s:
                    self._note_back()
                    forgotten_s = float("inf")
                asked_s = time.monotonic()
            guard.join(_LOOK_S)
        return False, True

    def _guard(self, life: AgentLife) -> None:
        """Waits for the end of a life, or until nothing comes of it any more; then all its calls
        end, whoever waits for them and however long that would be.
        """
        reason = ""
        while not reason and not self._is_closing.is_set():
            if life.is_over(_LOOK_S):
                reason = "it is gone"
            elif life.is_silent():
                reason = "it is silent"
            elif life.oldest_s >= _HUNG_S:
                reason = "a call does not end"
        if not self._is_closing.is_set():
            self._log.warning("the KV store's agent is replaced", reason=reason)
        life.hang_up()

    def _note_there(self) -> None:
        """Calls have a prospect again."""
        self.is_away = False
        self._log.info("the KV store is there")
        self._note_back()
        self._note_change()
