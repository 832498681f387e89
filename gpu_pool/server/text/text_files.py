"""The text side of one checkpoint, read from its files.

Owns which file says what; reads `config.json`, `tokenizer.json`, `tokenizer_config.json` and the
template. Must not know weights. Read next: `model_text` (what it becomes).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import UnsupportedFeature
from gpu_pool.server.text.answers.answer_format import find_answer_format
from gpu_pool.server.text.chat_template import ChatTemplate
from gpu_pool.server.text.kimi_tokenizer import TIKTOKEN_FILE, TOKENIZER_FILE, is_convertible
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.prompt_encoder import PromptEncoder
from gpu_pool.server.text.text_threads import TextThreads
from gpu_pool.server.text.token_bytes import TokenBytes
from gpu_pool.server.text.tokenizer import Tokenizer
from gpu_pool.structured.grammar_text import is_opaque


class _NamedTemplate(msgspec.Struct, frozen=True):
    """One of several templates of a model."""

    name: str
    template: str


class _Token(msgspec.Struct, frozen=True):
    """The older form of a special token."""

    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    """What is read of `tokenizer_config.json`."""

    chat_template: str | tuple[_NamedTemplate, ...] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None


@dataclass(frozen=True, slots=True)
class TextSources:
    """What the text side asks of the outside: times, one of which limits templates, and chance."""

    now: Callable[[], datetime]
    monotonic_s: Callable[[], float]
    draw_bits: Callable[[int], int]
    """So many random bits; ids of tool calls are made of them."""


def load_model_text(directory: Path, threads: TextThreads, sources: TextSources) -> ModelText:
    """The text side of the checkpoint in `directory`.

    Raises: `UnsupportedFeature` when a file is missing or of a kind we do not know.
    """
    config = _read_json(directory / "config.json")
    if is_convertible(directory):
        raise UnsupportedFeature(
            f"The checkpoint has `{TIKTOKEN_FILE}` and no `{TOKENIZER_FILE}`: add it with "
            "`hearth models add`, which makes the one of the other, and serve what was added."
        )
    document = _read_json(directory / TOKENIZER_FILE)
    options = _read_options(directory / "tokenizer_config.json")
    source = _read_template(directory, options)
    tokenizer = Tokenizer(document, source or "")
    template = None
    if source is not None:
        template = ChatTemplate(source, _find_special(options), sources.now, sources.monotonic_s)
    form = find_answer_format(source)
    thought_table = _show_marks(tokenizer.table, form.thought_marks)
    text_config = config.get("text_config", config)
    return ModelText(
        encoder=PromptEncoder(tokenizer, template, form, threads, sources.monotonic_s),
        form=form,
        table=tokenizer.table,
        thought_table=thought_table,
        call_table=_show_marks(thought_table, form.call_marks),
        context_window=int(text_config["max_position_embeddings"]),
        opaque_ids={
            token["content"]: token["id"]
            for token in document["added_tokens"]
            if is_opaque(token["content"], token["special"])
        },
        tokenizer_path=directory / TOKENIZER_FILE,
        threads=threads,
        draw_bits=sources.draw_bits,
    )


def _show_marks(table: TokenBytes, marks: Sequence[str]) -> TokenBytes:
    """The table with those control tokens visible that occur in `marks`."""
    shown = {i: token for i, token in table.special.items() if any(token in m for m in marks)}
    return table.show(shown)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises: `UnsupportedFeature`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        raise UnsupportedFeature(f"The checkpoint has no `{path.name}`.") from error
    except msgspec.MsgspecError as error:
        raise UnsupportedFeature(f"`{path.name}` of the checkpoint is not valid JSON.") from error


def _read_options(path: Path) -> _TokenizerConfig:
    """The tokenizer's options; all defaults without the file. Raises: `UnsupportedFeature`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TokenizerConfig)
    except FileNotFoundError:
        return _TokenizerConfig()
    except msgspec.MsgspecError as error:
        raise UnsupportedFeature(f"`{path.name}` cannot be read: {error}") from error


def _read_template(directory: Path, options: _TokenizerConfig) -> str | None:
    """The chat template: a file of its own, or an option, or the default of several."""
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = options.chat_template
    if isinstance(found, tuple):
        return next((named.template for named in found if named.name == "default"), None)
    return found


def _find_special(options: _TokenizerConfig) -> dict[str, str]:
    """The named special tokens that are set, as text."""
    tokens = {
        "bos_token": options.bos_token,
        "eos_token": options.eos_token,
        "unk_token": options.unk_token,
        "pad_token": options.pad_token,
    }
    return {
        name: token if isinstance(token, str) else token.content
        for name, token in tokens.items()
        if token is not None
    }
