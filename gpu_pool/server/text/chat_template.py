"""Chat templates: Jinja in an immutable sandbox, under limits of time and size.

Renders the way `transformers` does, since models were trained on that text. Templates come from
the model's own files, never from a request. Must not know tokens. Read next: `template_sandbox`,
`prompt_encoder`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from contracts.errors import InvalidRequest, UnsupportedFeature
from gpu_pool.server.text.conversation import Conversation
from gpu_pool.server.text.template_growth import measure
from gpu_pool.server.text.template_sandbox import Sandbox

MAX_RENDER_S: Final = 2.0
SIZE_ALLOWANCE_CHARS: Final = 256 * 1024
MAX_SOURCE_CHARS: Final = 1 << 20
SIZE_FACTOR: Final = 4
"""A rendering may grow to this multiple of the messages, plus the allowance."""


class TemplateRefusal(Exception):
    """The template itself called `raise_exception`; its text is written for users."""


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One model's template."""

    def __init__(
        self,
        source: str,
        special_strings: Mapping[str, str],
        now: Callable[[], datetime],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`special_strings` are names such as `bos_token` with their text.

        Raises: `UnsupportedFeature` when the template cannot be compiled.
        """
        self.source = source
        self._special_strings = dict(special_strings)
        self._monotonic_s = monotonic_s
        if len(source) > MAX_SOURCE_CHARS:
            raise UnsupportedFeature(
                f"The chat template has {len(source)} characters; {MAX_SOURCE_CHARS} are taken."
            )
        environment = Sandbox(
            monotonic_s,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception  # type: ignore[assignment]
        environment.globals["strftime_now"] = lambda form: now().strftime(form)  # type: ignore
        environment.globals["dict"] = _create_dict  # type: ignore[assignment]
        environment.seal()
        self._environment = environment
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # nesting without end is no error of the language
            raise UnsupportedFeature(f"The chat template cannot be compiled: {error}") from error

    def render(self, conversation: Conversation, num_chars: int) -> str:
        """The conversation as text that ends where the assistant's answer begins.

        `num_chars` is the size of what users wrote in it, which limits that of the whole.
        Raises: `InvalidRequest` when the template refuses the messages or exceeds a limit.
        """
        variables: dict[str, Any] = {"documents": None, **conversation.options}
        variables |= {"messages": conversation.messages, "tools": conversation.tools}
        variables |= self._special_strings | {"add_generation_prompt": True}
        try:
            return self._render_within(variables, SIZE_ALLOWANCE_CHARS + SIZE_FACTOR * num_chars)
        except TemplateRefusal as error:
            raise InvalidRequest(f"The model's chat template refuses this: {error}") from error
        except InvalidRequest:
            raise
        except Exception as error:  # a template is a program of others: anything may come out
            raise InvalidRequest(
                "The model's chat template cannot render these messages.", param="messages"
            ) from error

    def _render_within(self, variables: dict[str, Any], max_chars: int) -> str:
        """The text, piece by piece, so that a runaway template is stopped."""
        pieces: list[str] = []
        num_chars = 0
        end_s = self._monotonic_s() + MAX_RENDER_S
        given = measure(list(variables.values()), float("inf"))  # lists of it may be made as well
        with self._environment.within(end_s, max_chars + given):
            for piece in self._template.generate(variables):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > max_chars:
                    raise InvalidRequest(
                        "The rendered conversation is too large.", param="messages"
                    )
                if self._monotonic_s() > end_s:
                    raise InvalidRequest(
                        "Rendering the conversation takes too long.", param="messages"
                    )
        return "".join(pieces)


def _create_dict(**items: Any) -> dict[str, Any]:
    """What `dict(...)` gives in a template: no attributes of the class can be reached."""
    return dict(**items)


def _raise_exception(message: object) -> None:
    """What templates call to refuse a conversation."""
    raise TemplateRefusal(str(message)[:500])


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
