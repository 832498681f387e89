"""The text side of an encoder: texts and pairs of texts to token ids, cut to what the model takes.

Control tokens come from the tokenizer's own post-processing alone: where a text spells one, it is
tokenised as the plain characters it is. Must not know weights or requests.
Source: sentence-transformers' folder layout (`sentence_bert_config.json`, `1_Pooling`).
Read next: `gpu_pool.server.served_encoder` (the caller).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from tokenizers import Encoding as TokenizerEncoding

from contracts.encoding import EncoderTask, Pooling
from contracts.errors import ContextTooLong, InvalidRequest, UnsupportedFeature
from gpu_pool.encoder_architectures import CLASSIFIER_ARCHITECTURES, ENCODER_ARCHITECTURES
from gpu_pool.server.text.native_tokenizer import encode_text, read_tokenizer
from gpu_pool.server.text.tokenizer_document import check_ids, read_added_tokens

StructT = TypeVar("StructT", bound=msgspec.Struct)
_LARGEST_PAIR_QUERY: Final = 0.75
"""Of the model's context: a longer query would leave next to nothing of what it is compared to."""


class _EncoderConfig(msgspec.Struct, frozen=True):
    """What is read of `config.json`."""

    architectures: tuple[str, ...] = ()
    hidden_size: int = 0
    max_position_embeddings: int = 0
    id2label: dict[str, str] | None = None
    num_labels: int | None = None


class _SentenceConfig(msgspec.Struct, frozen=True):
    """What is read of `sentence_bert_config.json`."""

    max_seq_length: int | None = None


class _PoolingConfig(msgspec.Struct, frozen=True):
    """What is read of `1_Pooling/config.json`."""

    pooling_mode_cls_token: bool = False


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One text, or a query and a text, as the model reads it."""

    token_ids: tuple[int, ...]
    num_query_tokens: int = 0
    """Leading tokens that are the query's."""


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """What a checkpoint says of an encoder."""

    task: EncoderTask
    output_dimensions: int
    """Of an embedding, else 0."""
    labels: tuple[str, ...]
    """Of a classifier, else none."""
    pooling: Pooling
    """What the model was trained with, mean where nothing says so."""
    max_positions: int
    """Tokens of one text, as far as the checkpoint says; the engine knows better."""
    max_tokens: int | None
    """Where the checkpoint wants less than that."""


class EncoderText:
    """The way in for one encoder."""

    def __init__(self, tokenizer_document: bytes, facts: EncoderFacts) -> None:
        """`tokenizer_document` is the content of `tokenizer.json`."""
        self.facts: Final = facts
        document = msgspec.json.decode(tokenizer_document, type=dict[str, Any])
        document |= {"truncation": None, "padding": None}
        added = read_added_tokens(document)
        self._tokenizer = read_tokenizer(msgspec.json.encode(document).decode())
        self._tokenizer.encode_special_tokens = True
        check_ids(added, self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one below this."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str | tuple[int, ...], max_tokens: int, truncates: bool) -> EncodedText:
        """A text's ids, at most `max_tokens`; ids are taken as they stand.

        Raises: `InvalidRequest`, `ContextTooLong` unless it `truncates`.
        """
        if isinstance(text, tuple):
            return EncodedText(_cut(self._check_ids(text), max_tokens, truncates))
        bare = encode_text(self._tokenizer, text)
        num_tokens = len(bare.ids) + self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if num_tokens > max_tokens:
            _require_cut(num_tokens, max_tokens, truncates)
            bare.truncate(max(max_tokens - (num_tokens - len(bare.ids)), 0))
        encoding = self._tokenizer.post_process(bare)
        return EncodedText(_check_content(encoding.ids))

    def encode_pairs(
        self, query: str, texts: Sequence[str], max_tokens: int, truncates: bool
    ) -> tuple[EncodedText, ...]:
        """The ids of `query` and each of `texts` together, of which only the texts are ever cut.

        The query is read once: it may be all that a body can hold, and the texts many.

        Raises: `ContextTooLong` when the query leaves no room, or a text is not to be cut.
        """
        first = encode_text(self._tokenizer, query)
        num_added = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        if len(first.ids) + num_added > _LARGEST_PAIR_QUERY * max_tokens:
            raise ContextTooLong(
                f"The query has {len(first.ids)} tokens; this model takes {max_tokens} for query "
                "and text together.",
                param="query",
            )
        room = max_tokens - num_added - len(first.ids)
        return tuple(self._join(first, text, room, max_tokens, truncates) for text in texts)

    def _join(
        self, first: TokenizerEncoding, text: str, room: int, max_tokens: int, truncates: bool
    ) -> EncodedText:
        """A query and a text, of which `room` tokens are kept."""
        second = encode_text(self._tokenizer, text)
        if len(second.ids) > room:
            _require_cut(max_tokens - room + len(second.ids), max_tokens, truncates)
            second.truncate(room)
        joined = self._tokenizer.post_process(first, second)
        return EncodedText(tuple(joined.ids), _count_query(joined))

    def _check_ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids as they came, if all are in the vocabulary."""
        if not token_ids:
            raise InvalidRequest("A text of `input` is empty.", param="input")
        vocab_size = self.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"Token id {token_id} is outside this model's vocabulary of {vocab_size}.",
                    param="input",
                )
        return token_ids


def load_encoder_text(directory: Path) -> EncoderText | None:
    """The text side of the checkpoint in `directory`; None when it is no encoder.

    Raises: `UnsupportedFeature` when a file is missing or cannot be read.
    """
    config = _read(directory / "config.json", _EncoderConfig)
    if len(config.architectures) != 1 or config.architectures[0] not in ENCODER_ARCHITECTURES:
        return None
    path = directory / "tokenizer.json"
    try:
        document = path.read_bytes()
    except FileNotFoundError as error:
        raise UnsupportedFeature(f"The checkpoint has no `{path.name}`.") from error
    try:
        return EncoderText(document, _find_facts(directory, config))
    except UnsupportedFeature:
        raise
    except Exception as error:  # the tokenizer's library raises nothing more precise
        raise UnsupportedFeature(f"`{path.name}` of the checkpoint cannot be read.") from error


def _find_facts(directory: Path, config: _EncoderConfig) -> EncoderFacts:
    """What the checkpoint's small files say."""
    is_classifier = config.architectures[0] in CLASSIFIER_ARCHITECTURES
    labels = _list_labels(config) if is_classifier else ()
    task = EncoderTask.EMBED
    if is_classifier:
        task = EncoderTask.RERANK if len(labels) == 1 else EncoderTask.CLASSIFY
    pooling = _read_optional(directory / "1_Pooling" / "config.json", _PoolingConfig)
    sentence = _read_optional(directory / "sentence_bert_config.json", _SentenceConfig)
    return EncoderFacts(
        task=task,
        output_dimensions=0 if is_classifier else config.hidden_size,
        labels=labels if task is EncoderTask.CLASSIFY else (),
        pooling=Pooling.CLS if pooling.pooling_mode_cls_token else Pooling.MEAN,
        max_positions=config.max_position_embeddings,
        max_tokens=sentence.max_seq_length,
    )


def _list_labels(config: _EncoderConfig) -> tuple[str, ...]:
    """The labels in the order of the head's rows; two where nothing says so."""
    names = config.id2label
    if names is not None and set(names) == {str(i) for i in range(len(names))}:
        return tuple(names[str(i)] for i in range(len(names)))
    count = len(names) if names is not None else config.num_labels
    return tuple(f"LABEL_{i}" for i in range(2 if count is None else count))


def _count_query(encoding: TokenizerEncoding) -> int:
    """Leading tokens of type 0, where the tokenizer tells queries from texts."""
    types = encoding.type_ids
    return types.index(1) if 1 in types else 0


def _cut(token_ids: tuple[int, ...], max_tokens: int, truncates: bool) -> tuple[int, ...]:
    if len(token_ids) > max_tokens:
        _require_cut(len(token_ids), max_tokens, truncates)
    return token_ids[:max_tokens]


def _require_cut(num_tokens: int, max_tokens: int, truncates: bool) -> None:
    """Raises: `ContextTooLong` for a text that must not be cut."""
    if not truncates:
        raise ContextTooLong(
            f"This model takes texts of {max_tokens} tokens; one of the request has {num_tokens}."
        )


def _check_content(token_ids: list[int]) -> tuple[int, ...]:
    """The ids. Raises: `InvalidRequest` when there are none."""
    if not token_ids:
        raise InvalidRequest("A text is empty.")
    return tuple(token_ids)


def _read(path: Path, kind: type[StructT]) -> StructT:
    """The struct in a file. Raises: `UnsupportedFeature`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise UnsupportedFeature(f"The checkpoint has no `{path.name}`.") from error
    except msgspec.MsgspecError as error:
        raise UnsupportedFeature(f"`{path.name}` of the checkpoint cannot be read.") from error


def _read_optional(path: Path, kind: type[StructT]) -> StructT:
    """The same, with all defaults where there is no file."""
    return _read(path, kind) if path.is_file() else kind()
