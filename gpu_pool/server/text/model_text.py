"""The text side of one checkpoint, read from its files.

Owns which file says what; reads `config.json`, `tokenizer.json`, `tokenizer_config.json` and the
template. Must not know weights. Read next: `prompt_encoder`, `text_stream`.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import UnsupportedFeature
from gpu_pool.server.text.chat_template import ChatTemplate
from gpu_pool.server.text.detokenizer import Detokenizer
from gpu_pool.server.text.prompt_encoder import PromptEncoder
from gpu_pool.server.text.stop_strings import StopMatcher
from gpu_pool.server.text.text_stream import TextStream
from gpu_pool.server.text.token_bytes import TokenBytes
from gpu_pool.server.text.tokenizer import Tokenizer


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
class ModelText:
    """A model's vocabulary and template, ready for use."""

    encoder: PromptEncoder
    table: TokenBytes
    context_window: int
    """In tokens, as the checkpoint declares it; the engine may offer less."""

    def create_stream(self, stops: tuple[str, ...]) -> TextStream:
        """The way out for one sequence."""
        return TextStream(Detokenizer(self.table), StopMatcher(stops))


@dataclass(frozen=True, slots=True)
class TextClocks:
    """The times that templates may ask for, and the one that limits them."""

    now: Callable[[], datetime]
    monotonic_s: Callable[[], float]


def load_model_text(directory: Path, threads: Executor, clocks: TextClocks) -> ModelText:
    """The text side of the checkpoint in `directory`.

    Raises: `UnsupportedFeature` when a file is missing or of a kind we do not know.
    """
    config = _read_json(directory / "config.json")
    document = _read_json(directory / "tokenizer.json")
    options = _read_options(directory / "tokenizer_config.json")
    source = _read_template(directory, options)
    tokenizer = Tokenizer(document, source or "")
    template = None
    if source is not None:
        template = ChatTemplate(source, _find_special(options), clocks.now, clocks.monotonic_s)
    text_config = config.get("text_config", config)
    return ModelText(
        encoder=PromptEncoder(tokenizer, template, threads),
        table=tokenizer.table,
        context_window=int(text_config["max_position_embeddings"]),
    )


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
