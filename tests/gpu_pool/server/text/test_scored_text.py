"""Where the tokens of an echoed prompt and its answer stand in the text, whatever is not shown."""

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from contracts.inference import (
    GenerateRequest,
    PlainPrompt,
    SamplingParams,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
)
from gateway.dialects.logprobs import CompletionColumns
from gpu_pool.plan import TokenScore
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.scored_text import ScoredText, lacks_first_space
from gpu_pool.server.text.token_bytes import TokenBytes, create_token_bytes

WORDS = [
    "<s>",
    "\u2581",
    "\u2581\u2581",
    "\u2581Once",
    "\u2581upon",
    "Once",
    "!",
    "<0xC3>",
    "<0xA9>",
]
IDS = {word: token_id for token_id, word in enumerate(WORDS)}
ONCE, UPON = IDS["\u2581Once"], IDS["\u2581upon"]


def create_table(scheme: str) -> TokenBytes:
    """The words of a vocabulary that writes a space in front of the first one."""
    tokenizer = Tokenizer(models.BPE(IDS, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    if scheme == "Metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:  # as Llama 2 has it
        prepend = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(prepend)
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    return create_token_bytes(tokenizer, json.loads(tokenizer.to_str()))


def spell(scored: ScoredText, *token_ids: int) -> tuple[TokenLogprob, ...]:
    """The tokens, one by one."""
    return tuple(one for i in token_ids for one in scored.spell([i], [TokenScore(-1.0, ())]))


def place(scored: tuple[TokenLogprob, ...]) -> list[int]:
    """Where they begin."""
    return CompletionColumns().add(scored).text_offset


def shift(scored: tuple[TokenLogprob, ...]) -> list[int]:
    """Where they would, were all of their bytes shown."""
    forms = [TokenLogprob(one.token_id, one.token, one.logprob) for one in scored]
    return place(tuple(forms))


@pytest.mark.parametrize("scheme", ["Metaspace", "Llama 2"])
def test_tokens_of_an_echo_begin_where_their_words_do(scheme: str) -> None:
    table = create_table(scheme)
    for text, ids in (
        ("Once upon!", (0, ONCE, UPON, IDS["!"])),
        (" Once upon!", (0, IDS["\u2581\u2581"], IDS["Once"], UPON, IDS["!"])),
    ):
        hides_space = lacks_first_space(table, ids, text)
        assert hides_space
        scored = spell(ScoredText(table, hides_space=hides_space), *ids)
        assert [text[at:] for at in place(scored)[-2:]] == [" upon!", "!"]
        assert shift(scored)[-2:] == [at + 4 for at in place(scored)[-2:]]  # `<s>`, and a space


def test_a_text_that_brings_the_space_itself_lacks_none() -> None:
    table = create_table("Metaspace")
    assert not lacks_first_space(table, (ONCE, UPON), " Once upon")
    scored = spell(ScoredText(table, hides_space=False), ONCE, UPON, 0, UPON)
    assert place(scored) == [0, 5, 10, 10]
    assert [one.num_hidden_bytes for one in scored] == [0, 0, 3, 0]


def test_bytes_are_spelled_behind_a_space_that_is_not_shown() -> None:
    table = create_table("Llama 2")
    ids = (IDS["\u2581"], IDS["<0xC3>"], IDS["<0xA9>"], IDS["!"])
    assert lacks_first_space(table, ids, "\u00e9!")
    assert place(spell(ScoredText(table, hides_space=True), *ids)) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("prompt", "is_shown"),
    [
        (TextPrompt(text="Once"), True),
        (TokenPrompt(token_ids=(0, ONCE)), True),
        (TokenPrompt(token_ids=(0,)), False),
    ],
)
def test_an_answer_shows_its_first_space_where_it_continues_a_text(
    model_text: ModelText, prompt: PlainPrompt, is_shown: bool
) -> None:
    table = create_table("Metaspace")
    text = replace(model_text, table=table, thought_table=table, call_table=table)
    request = GenerateRequest(model="m", prompt=prompt, sampling=SamplingParams())
    stream = text.create_stream(request, 0, is_thinking=False)
    deltas = [*stream.push([UPON, ONCE]), *stream.finish()]
    shown = "".join(getattr(delta, "text", "") for delta in deltas)
    assert shown.startswith(" ") is is_shown
    scored = text.create_scored(prompt)
    first, second = spell(scored, UPON, ONCE)
    assert place((first, second)) == [0, shown.index(" Once")]
    resumed = text.create_scored(prompt)
    resumed.skip([UPON])
    assert spell(resumed, ONCE) == (second,)
