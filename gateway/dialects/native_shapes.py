"""The shapes of the native route's answers: the classic one, or one of OpenAI's in an envelope.

Read next: `gateway.dialects.workers_ai`, which chooses.
"""

from typing import Final

from gateway.dialects.batch_bodies import BATCH_REPLIES
from gateway.dialects.chat_replies import ChatCompletion, ChatForm
from gateway.dialects.completion_replies import Completion, CompletionForm
from gateway.dialects.dialect import ReplyForm
from gateway.dialects.encoder_replies import ENCODER_REPLIES
from gateway.dialects.replies import SuccessEnvelope
from gateway.dialects.responses_objects import ResponseObject
from gateway.dialects.workers_ai_replies import ClassicForm, TextGenerationResult

NATIVE_REPLIES: Final = (
    SuccessEnvelope[TextGenerationResult],
    SuccessEnvelope[ChatCompletion],
    SuccessEnvelope[Completion],
    SuccessEnvelope[ResponseObject],
    *ENCODER_REPLIES,
    *BATCH_REPLIES,
)


def create_classic_form(*, is_json: bool) -> ReplyForm:
    """`{response, usage}`; with `is_json` the response is the object itself."""
    return ClassicForm(is_json)


def create_chat_form(num_choices: int) -> ReplyForm:
    """A chat completion; its streams always tell the usage."""
    return ChatForm(num_choices, includes_usage=True, is_wrapped=True)


def create_text_form(num_choices: int) -> ReplyForm:
    """A text completion, likewise."""
    return CompletionForm(num_choices, includes_usage=True, is_wrapped=True)
