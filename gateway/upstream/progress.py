"""How far an answer has come, over all the nodes that had a part in it.

Owns the tokens received and the count of what was shown of them: enough to let another node go on.
Read next: `contracts.inference.Resumption`, `gateway.upstream.node_stream` (which notes it).
"""

from contracts.inference import (
    GenerationEvent,
    PromptScored,
    ReasoningDelta,
    Resumption,
    ToolCallDelta,
)


class Progress:
    """One answer's; grows with every event."""

    __slots__ = (
        "has_scores",
        "num_argument_chars",
        "num_calls",
        "num_reasoning",
        "num_reasoning_chars",
        "num_text_chars",
        "token_ids",
    )

    def __init__(self) -> None:
        """Nothing has come."""
        self.token_ids: list[int] = []
        self.num_text_chars = 0
        self.num_reasoning_chars = 0
        self.num_calls = 0
        self.num_argument_chars = 0
        self.num_reasoning = 0
        """Tokens of thoughts."""
        self.has_scores = False
        """Scores of the prompt have come, or a part of them."""

    def note(self, event: GenerationEvent) -> None:
        """An event has come that is no text, of which the stream itself takes note."""
        if isinstance(event, ReasoningDelta):
            self.token_ids += event.token_ids
            self.num_reasoning += len(event.token_ids)
            self.num_reasoning_chars += len(event.text)
        elif isinstance(event, ToolCallDelta):
            self.token_ids += event.token_ids
            self.num_calls += bool(event.id)
            self.num_argument_chars += len(event.arguments)
        elif isinstance(event, PromptScored):
            self.has_scores = True

    def to_resumption(self) -> Resumption:
        """Where another node is to go on."""
        return Resumption(
            token_ids=tuple(self.token_ids),
            num_text_chars=self.num_text_chars,
            num_reasoning_chars=self.num_reasoning_chars,
            num_calls=self.num_calls,
            num_argument_chars=self.num_argument_chars,
        )
