"""A request's prompt as token ids, with every limit on text checked on the way.

Short prompts are encoded where they are, long ones in a small pool of threads, so that the event
loop is not held up. Must not know sequences. Read next: `tokenizer`, `chat_template`.
"""

import asyncio
import re
from concurrent.futures import Executor
from typing import Final

from contracts.errors import ContextTooLong, InvalidRequest, UnsupportedFeature
from contracts.inference import ChatMessage, ChatPrompt, Prompt
from gpu_pool.server.text.chat_template import ChatTemplate
from gpu_pool.server.text.control_tokens import choose_mark
from gpu_pool.server.text.tokenizer import Tokenizer

MAX_INLINE_CHARS: Final = 4096
MAX_MESSAGES: Final = 10_000
KNOWN_ROLES: Final = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model")
)
_ASSISTANT: Final = frozenset(("assistant", "model"))
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class PromptEncoder:
    """The way in for one model."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, threads: Executor
    ) -> None:
        """`template` is None for models that only continue text."""
        self._tokenizer = tokenizer
        self._template = template
        self._threads = threads

    def encode(self, prompt: Prompt, context_window: int) -> tuple[int, ...]:
        """The ids of `prompt`.

        Raises: `InvalidRequest`, `UnsupportedFeature`; `ContextTooLong` when the text is so long
        that it cannot fit whatever its tokens are.
        """
        self._check_size(count_chars(prompt), context_window)
        if isinstance(prompt, ChatPrompt):
            ids = self._encode_chat(prompt)
        elif prompt.text:
            ids = self._tokenizer.encode_text(prompt.text)
        else:
            ids = []
        if not ids:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        return tuple(ids)

    async def encode_in_thread(self, prompt: Prompt, context_window: int) -> tuple[int, ...]:
        """The same for long prompts, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.encode, prompt, context_window)

    def _check_size(self, num_chars: int, context_window: int) -> None:
        """Refuses text with more bytes than the context's tokens can hold."""
        max_token_bytes = self._tokenizer.table.max_token_bytes
        if max_token_bytes is not None and num_chars > context_window * max_token_bytes:
            at_least = num_chars // max_token_bytes
            raise ContextTooLong(
                f"This model's context is {context_window} tokens, but the prompt alone has at "
                f"least {at_least}."
            )

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
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
        contents = (text for m in messages for text in (m.content, m.name or ""))
        mark = choose_mark((*contents, self._template.source))
        marked = [self._mark_message(message, mark) for message in messages]
        return self._tokenizer.encode_rendered(self._template.render(marked), mark)

    def _mark_message(self, message: ChatMessage, mark: str) -> dict[str, str]:
        """The message as a template sees it, unable to spell control tokens.

        An assistant's earlier answers may contain the visible ones, which templates look for.
        """
        role = message.role
        is_known = role in KNOWN_ROLES
        if not is_known and (not _ROLE.fullmatch(role) or self._tokenizer.control.is_part(role)):
            raise InvalidRequest("A message has a role that is not allowed.", param="messages")
        tokenizer = self._tokenizer
        control = tokenizer.special if role in _ASSISTANT else tokenizer.control
        marked = {"role": role, "content": control.mark(message.content, mark)}
        if message.name is not None:
            marked["name"] = control.mark(message.name, mark)
        return marked


def count_chars(prompt: Prompt) -> int:
    """The size of the prompt's text in characters, without what a template adds."""
    if isinstance(prompt, ChatPrompt):
        return sum(len(m.content) + len(m.name or "") for m in prompt.messages)
    return len(prompt.text)
