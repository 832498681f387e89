"""A small Kimi K2, and a K2.5, as they ship, from `hearth models add` to an answer.

Experts are packed, the tokenizer is a file of ranks, the template a file of its own, and code that
computes the model lies beside it, which nobody runs.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import tiktoken

from contracts.inference import Accepted, Finished
from tests.cli.test_models import run
from tests.fixtures.gateway_client import GatewayClient, ask, join_ids, join_text
from tests.fixtures.node_process import MODEL, run_node_process
from tests.fixtures.rank_file import NUM_MERGES
from tests.gpu_pool.models.deepseek.kimi_checkpoint import let_see, write_kimi
from tests.gpu_pool.models.family_checkpoint import Reference, copy_checkpoint
from tests.gpu_pool.server.text.test_kimi_tokenizer import KIMI_TEMPLATE, convert, train_tokens

VOCABULARY = 256 + NUM_MERGES + 256
END = 256 + NUM_MERGES + 2
"""`<|im_end|>`."""
AUTO_MAP = {
    "AutoConfig": "brought.Config",
    "AutoModel": "brought.Model",
    "AutoTokenizer": ["brought.Tokenizer", None],
}
BROUGHT = "import pathlib\npathlib.Path({trace!r}).touch()\nraise SystemExit\n"
"""Code that leaves a trace if anybody runs it."""
QUESTION = "The engine's user said: 你好，世界 2024"
NUM_TOKENS = 12


@pytest.fixture
def kimi(tmp_path: Path) -> tuple[Path, Path, tiktoken.Encoding]:
    """The checkpoint as it ships, the same unpacked, and its tokenizer as tiktoken has it."""
    packed, plain = write_kimi(tmp_path, vocab_size=VOCABULARY, eos_token_id=END)
    _, encoding = convert(packed, train_tokens())
    (packed / "chat_template.jinja").write_text(KIMI_TEMPLATE, encoding="utf-8")
    return packed, plain, encoding


def generate(folder: Path, token_ids: list[int]) -> list[int]:
    """What transformers says next."""
    reference, found = Reference(folder), list[int]()
    for _ in range(NUM_TOKENS):
        logits = reference.compute_logits([*token_ids, *found])
        found.append(int(logits[-1].argmax()))
    return found


def bring_code(folder: Path, trace: Path) -> None:
    """Has the checkpoint ask for code of its own, which lies beside it."""
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"auto_map": AUTO_MAP}))
    (folder / "brought.py").write_text(BROUGHT.format(trace=str(trace)))


@pytest.mark.parametrize("sees", [False, True])
async def test_a_kimi_that_was_added_answers_as_transformers_and_tiktoken_do(
    tmp_path: Path, kimi: tuple[Path, Path, tiktoken.Encoding], *, sees: bool
) -> None:
    packed, plain, encoding = kimi
    if sees:
        let_see(packed)
    bring_code(packed, trace := tmp_path / "trace")
    arguments = ("add", "@moonshot/kimi", "--from", packed, "--store", tmp_path / "store")
    added = run(*arguments)
    assert added.returncode == 0, added.stderr

    turn = f"<|im_user|>user<|im_middle|>{QUESTION}<|im_end|>"
    prompt = encoding.encode(f"{turn}<|im_assistant|>assistant<|im_middle|>", allowed_special="all")
    expected = generate(plain, prompt)
    rolled = {"down_proj.weight": lambda weight: weight.roll(1, 0)}
    assert generate(copy_checkpoint(plain, tmp_path / "wrong", tensors=rolled), prompt) != expected

    store = tmp_path / "store" / "@moonshot" / "kimi"
    with run_node_process(tmp_path, store, dtype="float32") as (_, address):
        async with GatewayClient(address) as client:
            request = ask(MODEL, QUESTION, max_tokens=NUM_TOKENS, ignore_eos=True)
            events = await client.generate(request)
    assert isinstance(events[0], Accepted)
    assert events[0].num_prompt_tokens == len(prompt)
    assert isinstance(events[-1], Finished)
    assert list(join_ids(events)) == expected
    said = [token_id for token_id in expected if token_id < VOCABULARY - 256]
    assert join_text(events) == encoding.decode(said)
    assert not trace.exists()
    by_hand = await asyncio.create_subprocess_exec(sys.executable, packed / "brought.py")
    await by_hand.wait()  # the control
    assert trace.exists()
