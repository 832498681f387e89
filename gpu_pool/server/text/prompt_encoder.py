"""A request's prompt and bad words as token ids, with every limit on text checked on the way.

Short prompts are encoded where they are, long ones in a small pool of threads, so that the event
loop is not held up. Must not know sequences. Read next: `conversation`, `chat_template`,
`tokenizer`.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from contracts.errors import ContextTooLong, InvalidRequest, UnsupportedFeature
from contracts.ids import AccountId
from contracts.inference import ChatPrompt, GenerateRequest, Prompt, TokenPrompt
from gpu_pool.server.text.answers.answer_format import THINK_BEGIN, AnswerFormat
from gpu_pool.server.text.chat_template import ChatTemplate
from gpu_pool.server.text.control_tokens import choose_mark
from gpu_pool.server.text.conversation import ConversationWriter, count_chars, list_texts
from gpu_pool.server.text.spelling import spell_words
from gpu_pool.server.text.text_threads import TextThreads
from gpu_pool.server.text.tokenizer import Tokenizer

MAX_INLINE_CHARS: Final = 4096
MAX_INLINE_S: Final = 0.2
"""For a short prompt: a model that ever takes longer has all of them encoded in threads, since the
event loop is that of other models as well."""
MAX_INLINE_WORDS: Final = 16
"""Of bad words, which are encoded several times each."""
MAX_MESSAGES: Final = 10_000
KNOWN_ROLES: Final = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model")
)
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it."""

    token_ids: tuple[int, ...]
    is_thinking: bool = False
    """It ends inside the model's thoughts: the template has begun them."""


class PromptEncoder:
    """The way in for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        form: AnswerFormat,
        threads: TextThreads,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`template` is None for models that only continue text; `form` was found in it."""
        self._tokenizer = tokenizer
        self._template = template
        self._writer = ConversationWriter(template.source if template else "", form)
        self._thinks = form.thinks
        self._threads = threads
        self._monotonic_s = monotonic_s
        self._is_slow = False

    def takes_inline(self, prompt: Prompt) -> bool:
        """True when `prompt` may be encoded on an event loop."""
        return measure_prompt(prompt) <= MAX_INLINE_CHARS and not self._is_slow

    def encode(self, prompt: Prompt, context_window: int) -> EncodedPrompt:
        """The ids of `prompt`.

        Raises: `InvalidRequest`, `UnsupportedFeature`; `ContextTooLong` when the text is so long
        that it cannot fit whatever its tokens are.
        """
        num_chars = measure_prompt(prompt)
        self._check_size(num_chars, context_window)
        began_s = self._monotonic_s()
        try:
            return self._encode(prompt)
        finally:
            self._is_slow |= (
                num_chars <= MAX_INLINE_CHARS and self._monotonic_s() - began_s > MAX_INLINE_S
            )

    def _encode(self, prompt: Prompt) -> EncodedPrompt:
        """As `encode`, whatever its size."""
        encoded = EncodedPrompt(())
        if isinstance(prompt, ChatPrompt):
            encoded = self._encode_chat(prompt)
        elif isinstance(prompt, TokenPrompt):
            encoded = EncodedPrompt(self._check_ids(prompt.token_ids))
        elif prompt.text:
            encoded = EncodedPrompt(tuple(self._tokenizer.encode_text(prompt.text)))
        if not encoded.token_ids:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        return encoded

    async def encode_in_thread(
        self, prompt: Prompt, context_window: int, account: AccountId
    ) -> EncodedPrompt:
        """The same for long prompts, off the event loop."""
        return await self._threads.run(account, self.encode, prompt, context_window)

    def spell(self, request: GenerateRequest) -> GenerateRequest:
        """`request`, whose sampling knows of its bad words. Raises: `InvalidRequest`."""
        if not request.bad_words:
            return request
        spellings = spell_words(self._tokenizer, request.bad_words)
        sampling = msgspec.structs.replace(request.sampling, bad_spellings=spellings)
        return msgspec.structs.replace(request, sampling=sampling)

    async def spell_in_thread(
        self, request: GenerateRequest, account: AccountId
    ) -> GenerateRequest:
        """The same for many bad words, off the event loop."""
        if not request.bad_words:
            return request
        return await self._threads.run(account, self.spell, request)

    def _check_size(self, num_chars: int, context_window: int) -> None:
        """Refuses text with more bytes than the context's tokens can hold."""
        max_token_bytes = self._tokenizer.table.max_token_bytes
        if max_token_bytes is not None and num_chars > context_window * max_token_bytes:
            at_least = num_chars // max_token_bytes
            raise ContextTooLong(
                f"This model's context is {context_window} tokens, but the prompt alone has at "
                f"least {at_least}."
            )

    def _check_ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids as they came, if all are in the vocabulary."""
        vocab_size = self._tokenizer.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"Token id {token_id} is outside this model's vocabulary of {vocab_size}.",
                    param="prompt",
                )
        return token_ids

    def _encode_chat(self, prompt: ChatPrompt) -> EncodedPrompt:
        """Ids of a conversation, up to where the answer begins."""
        if self._template is None:
            raise UnsupportedFeature("This model has no chat template; send `prompt` instead.")
        messages = prompt.messages
        if not messages:
            raise InvalidRequest("The conversation has no messages.", param="messages")
        if len(messages) > MAX_MESSAGES:
            raise InvalidRequest(
                f"The conversation has more than {MAX_MESSAGES} messages.", param="messages"
            )
        control, special = self._tokenizer.control, self._tokenizer.special
        for role in {message.role for message in messages}:
            self._check_role(role)
        texts = list(list_texts(prompt))
        mark = choose_mark((*texts, self._template.source))
        conversation = self._writer.write(
            prompt, lambda text: control.mark(text, mark), lambda text: special.mark(text, mark)
        )
        rendered = self._template.render(conversation, sum(map(len, texts)))
        ids = self._tokenizer.encode_rendered(rendered, mark)
        is_thinking = self._thinks and rendered.rstrip().endswith(THINK_BEGIN)
        return EncodedPrompt(tuple(ids), is_thinking)

    def _check_role(self, role: str) -> None:
        """Raises: `InvalidRequest` for a role that could spell a control token."""
        is_known = role in KNOWN_ROLES
        if not is_known and (not _ROLE.fullmatch(role) or self._tokenizer.control.is_part(role)):
            raise InvalidRequest("A message has a role that is not allowed.", param="messages")


def measure_prompt(prompt: Prompt) -> int:
    """The size of the prompt's text in characters, without what a template adds."""
    if isinstance(prompt, ChatPrompt):
        return count_chars(prompt)
    if isinstance(prompt, TokenPrompt):
        return len(prompt.token_ids)
    return len(prompt.text)
