"""Batches of token ids: conversations of like length side by side, with loss on the answers only.

Owns encoding, padding and positions. Read next: `train.py`.

Shapes: B rows, T tokens, A tokens of answers in all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tools.tiny_chat.conversations import Conversation, Conversations
from tools.tiny_chat.tokenizer import ASSISTANT, BOS, END, PAD, SYSTEM, USER, id_of


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded conversation."""

    token_ids: list[int]
    is_answer: list[bool]  # true where the token is said by tiny-chat, its end included
    turn_starts: list[int]  # where the user begins to speak
    answer_start: int = 0  # where the last answer begins

    def cut(self, length: int) -> Row:
        """Returns the row without what follows its first tokens."""
        return replace(self, token_ids=self.token_ids[:length], is_answer=self.is_answer[:length])


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one step, and what should come next where that matters."""

    token_ids_BT: Tensor
    positions_BT: Tensor
    before_answer_A: Tensor  # flat indices of the tokens that one of an answer follows
    next_ids_A: Tensor

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on a device, perhaps before its last byte is there."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self._tensors()))

    def pin_memory(self) -> Batch:
        """Returns the batch in page-locked memory, from where a GPU copies without waiting."""
        return Batch(*(tensor.pin_memory() for tensor in self._tensors()))

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.token_ids_BT, self.positions_BT, self.before_answer_A, self.next_ids_A


class Encoder:
    """Turns conversations into rows, exactly as the chat template would render them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            name: id_of(tokenizer, name) for name in (PAD, BOS, SYSTEM, USER, ASSISTANT, END)
        }

    @property
    def pad_id(self) -> int:
        """The token id that fills short rows."""
        return self._special[PAD]

    def to_row(self, conversation: Conversation) -> Row:
        """Returns the row of a conversation in chat form."""
        row, answer_start = Row([self._special[BOS]], [False], []), 0
        if conversation.system:
            self._say(row, SYSTEM, conversation.system)
        for turn in conversation.turns:
            row.turn_starts.append(len(row.token_ids))
            self._say(row, USER, turn.question)
            answer_start = len(row.token_ids) + 1
            self._say(row, ASSISTANT, turn.answer)
            if turn.is_held:
                row.is_answer[answer_start] = False
        return replace(row, answer_start=answer_start)

    def to_plain_row(self, conversation: Conversation, has_bos: bool) -> Row:
        """Returns the row of a conversation as bare lines, for completion without a template."""
        row = Row([self._special[BOS]], [False], []) if has_bos else Row([], [], [])
        for turn in conversation.turns:
            row.turn_starts.append(len(row.token_ids))
            self._append(row, self._ids(turn.question.strip() + "\n"), is_answer=False)
            self._append(row, self._ids(turn.answer + "\n"), is_answer=True)
        self._append(row, [self._special[END]], is_answer=True)
        return row

    def _say(self, row: Row, role: str, text: str) -> None:
        self._append(row, [self._special[role]], is_answer=False)
        self._append(
            row, [*self._ids(text.strip()), self._special[END]], is_answer=role == ASSISTANT
        )

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @staticmethod
    def _append(row: Row, token_ids: list[int], *, is_answer: bool) -> None:
        row.token_ids.extend(token_ids)
        row.is_answer.extend([is_answer] * len(token_ids))


class Batches:
    """An endless source of batches of about `num_tokens` tokens each."""

    def __init__(
        self,
        encoder: Encoder,
        rng: Random,
        *,
        num_tokens: int,
        max_position: int,
        is_brief: bool = False,
    ) -> None:
        self._encoder = encoder
        self._rng = rng
        self._is_brief = is_brief
        self._conversations = Conversations(rng, is_brief=is_brief)
        self._num_tokens = num_tokens
        self._max_position = max_position

    def __iter__(self) -> Iterator[Batch]:
        """Yields batches for ever."""
        num_rows = max(768, self._num_tokens // 4)  # some ten batches, for rows of like length
        while True:
            short = sorted(
                (self._row() for _ in range(num_rows)), key=lambda row: len(row.token_ids)
            )
            groups = list(self._split(short))
            groups.append([self._long_row()])
            self._rng.shuffle(groups)
            yield from map(self._to_batch, groups)

    def _row(self) -> Row:
        conversation = self._conversations.sample()
        if self._rng.random() < 0.03:
            return self._encoder.to_plain_row(conversation, self._rng.random() < 0.5)
        return self._glimpse(conversation)

    def _glimpse(self, conversation: Conversation) -> Row:
        """Returns the row, its last answer often cut: the choice lies in its beginning."""
        row = self._encoder.to_row(conversation)
        whole_share, fewest, most = (0.06, 3, 6) if self._is_brief else (0.2, 4, 9)
        if conversation.turns[-1].is_worked_out or self._rng.random() < whole_share:
            return row
        return row.cut(row.answer_start + self._rng.randint(fewest, most))

    def _long_row(self) -> Row:
        num_turns = (3, 8) if self._is_brief else (8, 28)
        return self._encoder.to_row(self._conversations.sample(self._rng.randint(*num_turns)))

    def _split(self, rows: list[Row]) -> Iterator[list[Row]]:
        group: list[Row] = []
        for row in rows:
            if group and (len(group) + 1) * len(row.token_ids) > self._num_tokens:
                yield group
                group = []
            group.append(row)
        yield group

    def _to_batch(self, rows: list[Row]) -> Batch:
        width = max(len(row.token_ids) for row in rows)
        token_ids = torch.full((len(rows), width), self._encoder.pad_id)
        is_answer = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, row in enumerate(rows):
            token_ids[index, : len(row.token_ids)] = torch.tensor(row.token_ids)
            is_answer[index, : len(row.token_ids)] = torch.tensor(row.is_answer)
        positions = torch.stack([self._positions(row, width) for row in rows])
        inputs = (tensor[:, :-1].contiguous() for tensor in (token_ids, positions))
        before_answer = is_answer[:, 1:].flatten().nonzero().flatten()
        next_ids = token_ids[:, 1:].flatten()[before_answer]
        return Batch(*inputs, before_answer_A=before_answer, next_ids_A=next_ids)

    def _positions(self, row: Row, width: int) -> Tensor:
        """Returns positions with chance gaps between turns, so that every distance is met."""
        steps = torch.ones(width, dtype=torch.long)
        steps[0] = 0
        if self._rng.random() < 0.3 and len(row.turn_starts) > 1:
            room = self._rng.randrange(max(1, self._max_position - width))
            for start in self._rng.sample(
                row.turn_starts[1:], self._rng.randint(1, min(3, len(row.turn_starts) - 1))
            ):
                steps[start] += room // 3
        return steps.cumsum(0)


class _Written(IterableDataset[Batch]):
    """The batches of one process, each process with chance of its own."""

    def __init__(
        self, encoder: Encoder, *, seed: int, num_tokens: int, max_position: int, is_brief: bool
    ) -> None:
        super().__init__()
        self._encoder = encoder
        self._seed = seed
        self._num_tokens = num_tokens
        self._max_position = max_position
        self._is_brief = is_brief

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = Random(self._seed if worker is None else f"{self._seed}/{worker.id}")
        return iter(
            Batches(
                self._encoder,
                rng,
                num_tokens=self._num_tokens,
                max_position=self._max_position,
                is_brief=self._is_brief,
            )
        )


def loaded_batches(
    encoder: Encoder,
    *,
    seed: int,
    num_tokens: int,
    max_position: int,
    num_loaders: int,
    is_pinned: bool,
    is_brief: bool = False,
) -> DataLoader[Batch]:
    """Returns an endless source of batches, written ahead by `num_loaders` processes if any."""
    written = _Written(
        encoder, seed=seed, num_tokens=num_tokens, max_position=max_position, is_brief=is_brief
    )
    return DataLoader(written, batch_size=None, num_workers=num_loaders, pin_memory=is_pinned)
