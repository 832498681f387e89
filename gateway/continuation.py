"""An answer under way, and how it goes on when its node is lost: from the tokens received.

The client sees one unbroken answer and pays for it once: the next node is told every token that
has come, the seed and the positions stay the same, and what it repeats is left out there. Late
frames of the old attempt reach nobody: its stream is closed. Answers of several choices, those
whose prompt was being scored, and those of engines of others cannot go on and end with an error.
Read next: `gateway.forwarding`
(before the first byte), `gateway.upstream.progress`, `gpu_pool.server.resumed_answer`.
"""

import asyncio
import contextlib
from typing import Final

import msgspec
import structlog

from contracts.codec import encode_request
from contracts.errors import (
    AccountSuspended,
    CapacityError,
    RequestError,
    ServiceError,
    ServiceStopping,
    StreamBroken,
    Unauthenticated,
    from_error_report,
)
from contracts.inference import (
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    NodeRequest,
    Usage,
)
from gateway.attempts import Attempt, Attempts, Place
from gateway.place_search import PlaceSearch
from gateway.request_context import Asker, RequestContext, add_usages
from gateway.retries import may_retry
from gateway.routing.route_plan import RouteNeed
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
PAUSE_S: Final = 0.1
"""After a node that could not be reached, though it seemed so."""
_FINAL: Final = (ServiceStopping, AccountSuspended, Unauthenticated)
"""After which no place is looked for: the process stops, or the account's requests have ended."""


class Forwarded:
    """A node's answer: its beginning for a stream, else all of it."""

    __slots__ = (
        "_asker",
        "_attempts",
        "_request",
        "_search",
        "attempt",
        "context",
        "events",
    )

    def __init__(
        self,
        attempts: Attempts,
        context: RequestContext,
        request: NodeRequest,
        search: PlaceSearch,
        attempt: Attempt,
        events: list[GenerationEvent],
        asker: Asker,
    ) -> None:
        """Made by `Forwarder.forward`."""
        self._attempts = attempts
        self.context = context
        self._request = request
        self._search = search
        self._asker = asker
        self.attempt = attempt
        self.events = events

    @property
    def stream(self) -> NodeStream:
        """The stream of the node that answers now."""
        return self.attempt.stream

    @property
    def num_choices(self) -> int:
        """How many answers were asked for at once, of all prompts."""
        request = self._request
        return request.num_answers if isinstance(request, GenerateRequest) else 1

    def read_usage(self) -> Usage | None:
        """What the client has got, however many nodes had a part in it."""
        return self.stream.read_usage()

    def complete(self, last: Finished) -> Finished:
        """`last` with the usage of the whole answer."""
        usage = self.read_usage()
        return last if usage is None else Finished(last.reason, usage, last.stop)

    def find_error(self, last: Finished | Failed) -> ServiceError | None:
        """The error that a stream's last event stands for."""
        return find_error(self._attempts, self.context, self.attempt, last)

    async def go_on(self, last: Finished | Failed) -> list[GenerationEvent] | None:
        """The first events of another node that goes on; None when the answer is over with `last`.

        Nothing must be pending of the stream that `last` ended.
        """
        error = self.find_error(last)
        if error is None:
            return None
        if may_retry(error) and self._can_resume() and not self._is_judged(last):
            return await self._resume(error)
        if not self.stream.is_aborted:  # the node has failed, though nobody can go on
            self._attempts.close(self.context, self.attempt, error)
        return None

    async def _resume(self, error: ServiceError) -> list[GenerationEvent] | None:
        """What the next node begins with; None when there is none."""
        before, context, attempts = self.attempt, self.context, self._attempts
        progress, plan = before.stream.progress, before.plan
        min_context = self._find_min_context()
        attempts.close(context, before, error)
        if not attempts.retries.may_try_again(context, has_begun=True):
            return None
        need = msgspec.structs.replace(
            before.need,
            tried=before.need.tried | {plan.node_id},
            revision=plan.card.revision,
            min_context=min_context,
            rejects_busy=False,
            may_wait=False,
            may_move=False,  # most of it has been computed for somebody before
        )
        body = encode_request(self._create_request())
        attempt = await self._find_place(need, body)
        if attempt is None:
            return None
        log.warning(
            "answer_resumed",
            request_id=context.request_id,
            num_tokens=len(progress.token_ids),
            from_node=plan.node_id,
            to_node=attempt.plan.node_id,
            error=error.code,
        )
        attempt.is_continuation = True
        self._set_usage_aside()
        attempt.stream.resume(before.stream)
        self.attempt = attempt
        self._asker.watch(attempt.stream.abort)
        return await attempt.stream.take()

    async def _find_place(self, need: RouteNeed, body: bytes) -> Attempt | None:
        """An attempt at a node that can go on, which is waited for within bounds, before all that
        have no part of their answer yet.

        A node that has failed is asked again once it is back, if no other can go on.
        """
        attempts, context = self._attempts, self.context
        end_s = attempts.retries.find_patience_end_s()
        while not self._asker.is_lost:
            try:
                need = await self._search.narrow(need)
                anywhere = msgspec.structs.replace(need, tried=frozenset())
                place = self._find_now(need, anywhere)
                if place is None:
                    place = await self._search.find_to_resume(anywhere, end_s)
                return None if place is None else attempts.open(context, place, body)
            except ServiceError as error:
                if isinstance(error, _FINAL):
                    return None
                log.debug("no_place_to_resume", error=error.code)
            if attempts.sources.monotonic_s() >= min(end_s, context.deadline_s):
                return None
            await asyncio.sleep(PAUSE_S)
        return None

    def _find_now(self, need: RouteNeed, anywhere: RouteNeed) -> Place | None:
        """A node that has room now, at best one that has not failed."""
        for wanted in (need, anywhere):
            with contextlib.suppress(CapacityError):
                return Place(wanted, self._attempts.plan(self.context, wanted))
        return None

    def _can_resume(self) -> bool:
        """True for an answer of which we know all that another node needs."""
        request, progress = self._request, self.stream.progress
        return (
            isinstance(request, GenerateRequest)
            and self.num_choices == 1
            and not self.attempt.plan.card.engine
            and not (progress.has_scores and not progress.token_ids)
            and not self._asker.is_lost
            and not self.stream.is_aborted
        )

    def _is_judged(self, last: Finished | Failed) -> bool:
        """True where the node finds fault with an answer that has begun: whoever went on from the
        same tokens might as well.
        """
        if not self.stream.progress.token_ids or not isinstance(last, Failed):
            return False
        return isinstance(from_error_report(last.error), RequestError)

    def _create_request(self) -> GenerateRequest:
        """The request, less what the client has of its answer."""
        request, progress = self._request, self.stream.progress
        assert isinstance(request, GenerateRequest)
        sampling = request.sampling
        if progress.has_scores:
            sampling = msgspec.structs.replace(sampling, num_prompt_logprobs=None)
        return msgspec.structs.replace(
            request, sampling=sampling, resumption=progress.to_resumption(), reject_if_busy=False
        )

    def _find_min_context(self) -> int:
        """Tokens that the next node's context must have: the prompt's and those of the answer, as
        far as they are there or asked for, and one more. No more than the lost node's had: of an
        answer that has filled it only the end is missing.
        """
        request, usage = self._request, self.stream.read_usage()
        if usage is None or not isinstance(request, GenerateRequest):
            return self.attempt.need.min_context
        sampling = request.sampling
        wanted = 0 if sampling.is_max_tokens_default else sampling.max_tokens or 0
        num_output = max(wanted, usage.num_completion_tokens + 1)
        num_tokens = usage.num_prompt_tokens + num_output
        window = self.attempt.plan.card.context_window
        return max(self.attempt.need.min_context, min(num_tokens, window))

    def _set_usage_aside(self) -> None:
        """Counts the prompt once more, for us and not for the client."""
        usage, context = self.stream.read_usage(), self.context
        if usage is None:
            return
        again = Usage(usage.num_prompt_tokens, usage.num_cached_tokens, 0)
        retried = context.usage_of_retried
        context.usage_of_retried = again if retried is None else add_usages([retried, again])


def find_error(
    attempts: Attempts, context: RequestContext, attempt: Attempt, last: GenerationEvent
) -> ServiceError | None:
    """What the latest event of an attempt says instead of an answer; None when it is a part of
    one.
    """
    if type(last) is Failed:
        return attempts.read_failure(context, attempt, last.error)
    is_aborted = type(last) is Finished and last.reason is FinishReason.ABORTED
    if is_aborted and not attempt.stream.is_aborted:
        return StreamBroken("The node gave the request up.")
    return None
