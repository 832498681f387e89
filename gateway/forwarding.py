"""Route and forward: finds a node, sends the request there, and tries again if that fails.

Owns the attempts of one request before anything of its answer has gone out: a retry shows nowhere.
Must not know dialects. Read next: `gateway.place_search`, `gateway.upstream.links`, then
`gateway.continuation` (what happens after the first byte) and `gateway.answering`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import structlog

from contracts.codec import encode_request
from contracts.errors import DeadlineExceeded, ServiceError
from contracts.inference import (
    GenerateRequest,
    GenerationEvent,
    NodeRequest,
)
from gateway.attempts import Attempt, Attempts, Place
from gateway.continuation import Forwarded, find_error
from gateway.entry import Entry
from gateway.need_description import describe_need, explain_refusal, find_context_window
from gateway.place_search import PlaceParts, PlaceSearch
from gateway.replays import Replays
from gateway.request_context import Asker, RequestContext, Tally
from gateway.retries import may_retry
from gateway.routing.fleet import Fleet

log = structlog.get_logger(__name__)
_SEED_BITS: Final = 63


class Forwarder:
    """Brings requests to nodes."""

    def __init__(self, fleet: Fleet, attempts: Attempts, parts: PlaceParts) -> None:
        """`fleet` chooses, `attempts` carry; `parts` are what searches for places need."""
        self.find_model: Final = fleet.roster.find_model
        self.find_context_window: Final = partial(find_context_window, fleet)
        self._fleet = fleet
        self._attempts = attempts
        self._parts = parts
        self.entry: Final = Entry(fleet.roster, is_strict=attempts.retries.settings.strict_entry)
        self.replays: Final = Replays(fleet.roster.laws, parts.standing)

    async def forward(
        self,
        context: RequestContext,
        request: NodeRequest,
        asker: Asker,
        on_accepted: Callable[[int, int], Tally],
    ) -> Forwarded:
        """The answer of the first node that gives one; it ends when the client leaves.

        `release` must follow. `context` must have its principal and is told its node.
        `on_accepted` gets the prompt's tokens, and the cached ones among them, as a node says, and
        tells where the tokens of the attempt are counted.

        Raises: what routing raises, and the node's own error when no attempt is left.
        """
        attempts = self._attempts
        attempts.retries.earn()
        has_choice = self._fleet.has_choice(request.model)
        if has_choice:
            request = self._draw_seed(request)
        body = encode_request(request)
        need = describe_need(self._fleet, context, request, asker, len(body), has_choice=has_choice)
        search = PlaceSearch(self._parts, context, request, need, len(body), asker)
        try:
            place = await search.find()
        except ServiceError:
            if context.wants_explanation:
                context.explanation = explain_refusal(self._fleet, need)
            raise
        while True:
            try:
                attempt = attempts.open(context, place, body)
                listener = (
                    self._create_listener(context, attempt, on_accepted)
                    if has_choice
                    else on_accepted
                )
                attempt.stream.on_accepted = listener
                if isinstance(request, GenerateRequest):
                    attempt.stream.num_answers = request.num_answers
                events = await self._try(context, attempt, is_streaming(request), asker)
                return Forwarded(attempts, context, request, search, attempt, events, asker)
            except ServiceError as error:
                if asker.is_lost or not self._may_go_on(context, place, error, has_choice):
                    if may_retry(error) and not attempts.retries.has_time(context):
                        raise DeadlineExceeded("The request took longer than it may.") from error
                    raise
                failure = error
            context.set_usage_aside()
            place = await search.find_after(place, failure)

    def release(self, forwarded: Forwarded) -> None:
        """The request is over: its place is free, and a stream that was cut short is aborted."""
        forwarded.stream.release()
        attempt = forwarded.attempt
        usage = attempt.stream.read_usage()
        if attempt.is_open and usage is not None and attempt.stream.is_over:
            num_tokens = usage.num_completion_tokens // attempt.stream.num_answers
            self._fleet.locality.note_output(attempt.need.model, num_tokens)
        self._attempts.close(forwarded.context, attempt, None)

    # -- parts -----------------------------------------------------------------------------------

    def _may_go_on(
        self, context: RequestContext, place: Place, error: ServiceError, has_choice: bool
    ) -> bool:
        """True when another attempt may end better than with `error`."""
        retries = self._attempts.retries
        return (
            retries.may_try_longer(context, place.plan, error)
            or (may_retry(error) and retries.may_try_again(context, has_begun=False))
            or (has_choice and retries.may_doubt(context, place.need, place.plan, error))
        )

    async def _try(
        self,
        context: RequestContext,
        attempt: Attempt,
        is_streaming: bool,
        asker: Asker,
    ) -> list[GenerationEvent]:
        """One attempt's first events, or all. Raises: the error that the answer begins with."""
        stream = attempt.stream
        try:
            asker.watch(stream.abort)
            events = await (stream.take() if is_streaming else stream.take_all())
        except BaseException:
            stream.release()  # this task is being cancelled: nobody will take the events
            context.usage = stream.read_usage()
            self._attempts.close(context, attempt, None)
            raise
        error = find_error(self._attempts, context, attempt, events[-1])
        if error is not None:
            context.usage = stream.read_usage()
            # The client has left: a node that says late that it has ended the answer is in order.
            counted = None if stream.is_aborted else error
            self._attempts.close(context, attempt, counted)
            raise error
        return events

    def _draw_seed(self, request: NodeRequest) -> NodeRequest:
        """The request with a seed, so that another node could go on with the very same draws."""
        if not isinstance(request, GenerateRequest) or request.sampling.seed is not None:
            return request
        if request.sampling.temperature == 0:
            return request
        seed = self._attempts.sources.random_bits(_SEED_BITS)
        sampling = msgspec.structs.replace(request.sampling, seed=seed)
        return msgspec.structs.replace(request, sampling=sampling)

    def _create_listener(
        self,
        context: RequestContext,
        attempt: Attempt,
        on_accepted: Callable[[int, int], Tally],
    ) -> Callable[[int, int], Tally]:
        """Tells the settlement what a node has counted, and the router how right it was."""
        plan = attempt.plan
        # What is told is another node's cache; engines of others tell nothing of theirs yet.
        if plan.prefill is not None or plan.card.engine:
            plan = msgspec.structs.replace(plan, num_cached_tokens=0)

        def note(num_prompt: int, num_cached: int) -> Tally:
            self._fleet.locality.note_accepted(attempt.need, plan, num_prompt, num_cached)
            self._attempts.note_accepted(context, attempt, num_prompt)
            return on_accepted(num_prompt, num_cached)

        return note


def is_streaming(request: NodeRequest) -> bool:
    """True when the answer is to be passed on as it comes."""
    return isinstance(request, GenerateRequest) and request.stream
