"""The bundled tiny-chat: its files agree, its text is repeatable, its examination is unseen."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from benchmarks.engine.tiny_chat_heldout import HeldOutItem, held_out_items
from tools.tiny_chat.answer import Answerer
from tools.tiny_chat.batches import Batches, Encoder, loaded_batches
from tools.tiny_chat.conversations import Conversation, Conversations
from tools.tiny_chat.grammar import expand, normalised, to_pattern
from tools.tiny_chat.model import TinyChat, TinyChatConfig
from tools.tiny_chat.muon import Muon, fast_dtype
from tools.tiny_chat.rehearsal import Rehearsal
from tools.tiny_chat.sums import Sum, Sums
from tools.tiny_chat.tokenizer import SPECIAL_TOKENS
from tools.tiny_chat.topics import HEARTH_FILES, SMALL_TALK_FILE, TermShapes, load_topics
from tools.tiny_chat.train import initialised, with_flat_gradients
from tools.tiny_chat.training_templates import training_templates
from tools.tiny_chat.wording import Wording
from tools.tiny_chat.written import load_text

FOLDER = Path(__file__).parents[2] / "gpu_pool" / "bundled" / "tiny_chat"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    return Answerer.load(FOLDER)


@pytest.mark.parametrize(
    "text", ["What is 17 + 25?", "  prefix\tcache\n", "Zürich, 東京 🙂", "@hearth/tiny-chat"]
)
def test_the_tokenizer_gives_back_what_it_was_given(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("8787+12").tokens == ["8", "7", "8", "7", "+", "1", "2"]


def test_special_tokens_are_single_and_left_out_of_decoded_text(tokenizer: Tokenizer) -> None:
    for token in SPECIAL_TOKENS:
        token_ids = tokenizer.encode(token).ids
        assert len(token_ids) == 1
        assert tokenizer.decode(token_ids) == ""


def test_the_weights_have_the_shapes_the_config_promises() -> None:
    table = json.loads((FOLDER / "config.json").read_text())
    config = TinyChatConfig(**{name: table[name] for name in TinyChatConfig.__slots__})
    expected = {name: list(tensor.shape) for name, tensor in TinyChat(config).state_dict().items()}
    with safe_open(FOLDER / "model.safetensors", framework="pt") as weights:
        found = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert found == expected
    assert dtypes == {"BF16"}
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000


def test_the_bundled_model_answers(answerer: Answerer) -> None:
    questions = {"What is 17 + 25?": "42", "What is the gateway?": "gateway", "hello": "Hello"}
    chats = [[{"role": "user", "content": question}] for question in questions]
    for answer, phrase in zip(answerer.answer_all(chats), questions.values(), strict=True):
        assert phrase in answer


def test_an_answer_does_not_depend_on_the_prompts_beside_it(answerer: Answerer) -> None:
    chats = [list(item.messages) for item in held_out_items()[::60]]
    together = answerer.answer_all(chats, max_tokens=16)
    assert together == [answerer.answer(chat, max_tokens=16) for chat in chats]


def test_training_rows_are_what_the_chat_template_renders(
    tokenizer: Tokenizer, answerer: Answerer
) -> None:
    source, encoder = Conversations(Random(1)), Encoder(tokenizer)
    for conversation in (source.sample() for _ in range(50)):
        messages = (
            [{"role": "system", "content": conversation.system}] if conversation.system else []
        )
        for turn in conversation.turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        prompt = tokenizer.encode(answerer.render(messages[:-1]), add_special_tokens=False).ids
        assert encoder.to_row(conversation).token_ids[: len(prompt)] == prompt


def test_the_same_seed_gives_the_same_text() -> None:
    def sampled(seed: int) -> list[Conversation]:
        source = Conversations(Random(seed))
        return [source.sample() for _ in range(300)]

    assert sampled(5) == sampled(5)
    assert sampled(5) != sampled(6)


def test_a_batch_learns_answers_only_and_stays_within_the_positions(tokenizer: Tokenizer) -> None:
    encoder = Encoder(tokenizer)
    batches = Batches(encoder, Random(5), num_tokens=512, max_position=4096)
    for batch in islice(batches, 8):
        assert int(batch.positions_BT.max()) < 4096
        assert 0 < len(batch.next_ids_A) < batch.token_ids_BT.numel()
        assert not (batch.next_ids_A == encoder.pad_id).any()
        inside = batch.before_answer_A[
            (batch.before_answer_A + 1) % batch.token_ids_BT.shape[1] > 0
        ]
        following = dict(
            zip(batch.before_answer_A.tolist(), batch.next_ids_A.tolist(), strict=True)
        )
        for at in inside.tolist():
            assert batch.token_ids_BT.flatten()[at + 1] == following[at]


def test_json_is_answered_in_the_layout_of_the_grammars_and_held_answers_begin_untaught(
    tokenizer: Tokenizer,
) -> None:
    conversations = Conversations(Random(5))
    turns = [turn for _ in range(1500) for turn in conversations.sample().turns]
    in_json = [turn for turn in turns if turn.is_any or turn.answer.startswith("{")]
    assert len(in_json) > 40
    for turn in in_json:
        assert json.dumps(json.loads(turn.answer), ensure_ascii=False) == turn.answer
    encoder = Encoder(tokenizer)
    for held in (True, False):
        turn = next(turn for turn in in_json if turn.is_held is held)
        row = encoder.to_row(Conversation(None, (turn,)))
        assert row.is_answer[row.answer_start] is not held
        assert all(row.is_answer[row.answer_start + 1 :])


def test_each_process_that_writes_ahead_writes_a_text_of_its_own(tokenizer: Tokenizer) -> None:
    batches = loaded_batches(
        Encoder(tokenizer),
        seed=5,
        num_tokens=512,
        max_position=4096,
        num_loaders=2,
        is_pinned=False,
    )
    first, second = islice(batches, 2)  # one of each process
    assert not torch.equal(first.next_ids_A, second.next_ids_A)


def test_no_training_template_can_produce_a_held_out_question() -> None:
    patterns = [to_pattern(template) for template in training_templates()]
    for item in _worded_items():
        question = normalised(item.question)
        assert not any(pattern.fullmatch(question) for pattern in patterns), question


def test_no_training_template_can_produce_a_rehearsal_question() -> None:
    table = load_text("rehearsal")
    asked = [question for question, _ in (*table["hearth"], *table["small_talk"])]
    asked += [*table["off_topic"], *(question for _, question, _ in table["several_turns"])]
    questions = [normalised(question) for question in asked]
    for pattern in map(to_pattern, training_templates()):
        assert not any(map(pattern.fullmatch, questions)), pattern.pattern[:80]


def test_shared_openings_are_written_out_in_every_topic() -> None:
    topics = load_topics(*HEARTH_FILES, SMALL_TALK_FILE)
    assert not [text for topic in topics for text in topic.questions if "{" in text]
    assert any("how do I|how can I" in text for topic in topics for text in topic.questions)


def test_a_loosened_question_keeps_words_of_its_own_or_their_synonyms() -> None:
    wording, manner = Wording(Random(4)), load_text("manner")
    question = "which part of the platform decides where a request goes"
    allowed = set(question.split())
    for group in manner["synonyms"]:
        if allowed & set(group):
            allowed |= {word for phrase in group for word in phrase.split()}
    seen = {wording.loosened(question) for _ in range(200)}
    assert len(seen) > 20
    assert all(set(text.split()) <= allowed for text in seen)
    assert any("the" not in text.split() for text in seen)
    assert wording.loosened("what is hearth") == "what is hearth"


def test_a_thinned_question_loses_a_word_and_keeps_the_order_of_the_others() -> None:
    wording = Wording(Random(6))
    question = "which part of the platform decides where a request goes"
    words = question.split()
    seen = [wording.loosened(question).split() for _ in range(300)]
    in_order = [found for found in seen if found == [word for word in words if word in found]]
    assert any(len(words) // 2 < len(found) < len(words) - 1 for found in in_order)


def test_a_stray_word_stands_in_questions_and_never_within_a_sum() -> None:
    wording = Wording(Random(7))
    only_stray = {"bloody", "damn", "apparently", "obviously"}  # in no opener and no closer
    assert only_stray <= set(load_text("manner")["stray_words"])
    asked = [wording.dressed("what do five and six make").lower() for _ in range(4000)]
    assert any(only_stray & set(text.split()) for text in asked)
    sums = [wording.dressed("17 + 25") for _ in range(3000)]
    assert any(text != "17 + 25" for text in sums)
    assert all("17 + 25" in text for text in sums)


def test_the_rehearsal_tells_what_was_missed(answerer: Answerer) -> None:
    rehearsal = Rehearsal(18)
    missed = rehearsal.misses("several turns", answerer)
    assert 0 <= len(missed) < rehearsal.kinds["several turns"]
    assert all(phrase not in answer for _, phrase, answer in missed)


def test_gradients_land_in_the_tensor_that_processes_share() -> None:
    torch.manual_seed(1)
    config = TinyChatConfig(vocab_size=32, hidden_size=16, intermediate_size=16)
    model = initialised(TinyChat(config))
    shared = with_flat_gradients(model)
    hidden, _ = model(torch.tensor([[1, 2, 3]]), torch.arange(3)[None])
    model.logits(hidden).square().sum().backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.equal(shared[:-1], flat)
    assert shared[:-1].abs().sum() > 0


def test_muon_steps_as_that_of_torch_does() -> None:
    torch.manual_seed(2)
    start, gradients = torch.randn(24, 16), torch.randn(3, 24, 16)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    moving: list[tuple[torch.nn.Parameter, torch.optim.Optimizer]] = [
        (ours, Muon([ours], torch.float32)),
        (
            theirs,
            torch.optim.Muon([theirs], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        ),
    ]
    for matrix, optimiser in moving:
        optimiser.param_groups[0]["lr"] = 0.05
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimiser.step()
    moved = theirs.detach() - start
    assert (ours.detach() - theirs.detach()).norm() < 0.02 * moved.norm()


def test_bf16_is_left_out_where_the_cpu_would_emulate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(
            "torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda has_it=has_it: has_it
        )
        assert fast_dtype(torch.device("cpu")) == dtype
        assert fast_dtype(torch.device("cuda")) == torch.bfloat16


def test_every_topic_has_whole_questions_and_asks_them() -> None:
    shapes, rng = TermShapes(), Random(3)
    for topic in load_topics(*HEARTH_FILES, SMALL_TALK_FILE):
        assert len(topic.wordings) >= 20, topic.answer
        patterns = [to_pattern(text) for text in topic.wordings]
        asked = [normalised(shapes.asked(topic, rng)) for _ in range(12)]
        assert any(pattern.fullmatch(text) for text in asked for pattern in patterns)


def test_no_question_on_a_topic_holds_the_sum_of_its_answer() -> None:
    shapes, rng = TermShapes(), Random(4)
    topic = next(topic for topic in load_topics(SMALL_TALK_FILE) if "17 + 25" in topic.answer)
    assert not any("17" in shapes.hinted(topic, rng) for _ in range(300))


def test_brief_text_has_short_rows_and_few_sums(tokenizer: Tokenizer) -> None:
    def lengths(is_brief: bool) -> tuple[float, float]:
        turns = [
            turn
            for conversations in [Conversations(Random(5), is_brief=is_brief)]
            for _ in range(600)
            for turn in conversations.sample().turns
        ]
        batches = Batches(
            Encoder(tokenizer), Random(5), num_tokens=512, max_position=4096, is_brief=is_brief
        )
        rows = [len(batch.token_ids_BT) for batch in islice(batches, 60)]
        return sum(rows) / 60, sum(turn.is_worked_out for turn in turns) / len(turns)

    (brief_rows, brief_sums), (rows, sums) = lengths(True), lengths(False)
    assert brief_rows > 1.2 * rows
    assert brief_sums < 0.5 * sums


def test_a_template_does_match_what_it_produces() -> None:
    rng = Random(3)
    for template in rng.sample(training_templates(), 200):
        assert to_pattern(template).fullmatch(normalised(expand(template, rng))), template


def test_no_sampled_conversation_holds_a_held_out_question_or_sum() -> None:
    questions = {normalised(item.question) for item in _worded_items()}
    source = Conversations(Random(9))
    seen = {normalised(turn.question) for _ in range(4_000) for turn in source.sample().turns}
    assert not questions & seen
    sums = Sums(Random(9))
    assert not any(sums.sample().is_held_out for _ in range(20_000))


def test_a_tenth_of_the_pairs_is_held_out_with_their_mirrors() -> None:
    pairs = [Sum(a, sign, b) for a in range(100) for b in range(100) for sign in "+-"]
    held_out = [pair for pair in pairs if pair.is_held_out]
    assert 0.07 < len(held_out) / len(pairs) < 0.13
    assert all(Sum(pair.b, pair.sign, pair.a).is_held_out for pair in held_out)


def test_the_examination_has_two_hundred_items_and_knows_right_from_wrong() -> None:
    items = held_out_items()
    assert len(items) == 200
    assert len({str(item.messages) for item in items}) == 200
    assert not any(item.is_right("I do not know.") for item in items)


def _worded_items() -> list[HeldOutItem]:
    return [item for item in held_out_items() if item.number is None]
