"""One stream of a fake node: the body is taken in, the answer is counted out.

Owns credit and merging, as the wire demands. Read next: `connection`.
"""

from collections.abc import Callable

from benchmarks.fake_node.settings import FakeAnswer
from contracts.errors import InvalidRequest
from contracts.grant import Grant
from contracts.inference import (
    Accepted,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    TokensCounted,
    Usage,
)


class FakeStream:
    """The state of one stream."""

    __slots__ = (
        "_answer",
        "_body",
        "_credit",
        "_held",
        "_is_streaming",
        "_missing_bytes",
        "_num_events",
        "_num_made",
        "_put",
        "_reason",
        "grant",
        "is_running",
    )

    def __init__(
        self,
        grant: Grant,
        num_body_bytes: int,
        credit: int,
        answer: FakeAnswer,
        put: Callable[[GenerationEvent], None],
    ) -> None:
        """A stream whose body is still to come."""
        self.grant = grant
        self.is_running = False
        self._missing_bytes = num_body_bytes
        self._credit = credit
        self._answer = answer
        self._put = put
        self._body = bytearray()
        self._is_streaming = True
        self._num_events = answer.num_events
        self._reason = FinishReason.STOP
        self._num_made = 0
        self._held = 0

    def add_body(self, fragment: bytes) -> bytes | None:
        """The whole body with its last fragment. Raises: `InvalidRequest` beyond its end."""
        if self.is_running or len(fragment) > self._missing_bytes:
            raise InvalidRequest("The body is longer than was announced.")
        self._missing_bytes -= len(fragment)
        self._body += fragment
        return None if self._missing_bytes else bytes(self._body)

    def start(self, request: GenerateRequest) -> None:
        """Accepts the request; `tick` makes its events."""
        self.is_running = True
        self._is_streaming = request.stream
        max_tokens = request.sampling.max_tokens
        if max_tokens is not None and max_tokens < self._num_events:
            self._num_events, self._reason = max_tokens, FinishReason.LENGTH
        self._put(Accepted(self._answer.num_prompt_tokens, 0))
        if not self._answer.tick_s:
            while self.is_running:
                self.tick()

    def count(self) -> None:
        """Answers a request that only asks how long its prompt is."""
        self._put(TokensCounted(self._answer.num_prompt_tokens))
        self._put(Finished(FinishReason.STOP, Usage(0, 0, 0)))

    def tick(self) -> None:
        """Makes the next event, or the last."""
        if self._num_made == self._num_events:
            self._send_held()
            self._end(self._reason)
            return
        self._num_made += 1
        self._held += 1
        if self._is_streaming and self._credit > 0:
            self._send_held()

    def add_credit(self, num_deltas: int) -> None:
        """Lets more deltas out."""
        self._credit += num_deltas
        if self._is_streaming and self._credit > 0:
            self._send_held()

    def abort(self) -> None:
        """Ends early with what was consumed."""
        self._held = 0
        self._end(FinishReason.ABORTED)

    def _send_held(self) -> None:
        """Everything made and not sent, as one delta."""
        if self._held:
            token_ids = tuple(range(self._num_made - self._held, self._num_made))
            self._put(Delta(self._answer.text * self._held, token_ids))
            self._credit -= 1
            self._held = 0

    def _end(self, reason: FinishReason) -> None:
        """The last event."""
        num_prompt_tokens = self._answer.num_prompt_tokens if self.is_running else 0
        self.is_running = False
        self._put(Finished(reason, Usage(num_prompt_tokens, 0, self._num_made)))
