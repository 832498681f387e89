"""A node for prompts and one for answers: each gets the adapter of the request that they share."""

from pathlib import Path

import pytest

from gateway.routing import prefill_choice
from tests.gateway.file_reader import FileReader
from tests.gateway.running_gateway import wait_until
from tests.gateway.test_adapters import give_adapters
from tests.gpu_pool.lora.adapter_files import write_adapter
from tests.integration.halves import ask, count_landed
from tests.integration.test_split_nodes import can_hand_over, run_fleet, write_prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NUM_PROMPTS = 3


async def test_answers_with_an_adapter_are_those_of_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_cost(seconds: float) -> None:
        """What it costs to compute a prompt where it is answered: prompts of tests are short."""
        monkeypatch.setattr(prefill_choice, "_estimate_here_s", lambda *_: seconds)

    async with run_fleet(tmp_path) as (gateway, (answers, _)):
        set_cost(0.0)
        plain = await ask(gateway, write_prompt(0), 24)
        (tmp_path / "files").mkdir()
        reader = FileReader(tmp_path / "files")
        write_adapter(tmp_path / "adapter", tmp_path / "checkpoint", size=0.5)
        content = (tmp_path / "adapter").read_bytes()
        give_adapters(gateway, reader, reader.put(content, scale=2.0, rank=4))
        wanted = [await ask(gateway, write_prompt(number), 24) for number in range(NUM_PROMPTS)]
        assert wanted[0][0] != plain[0]  # the adapter changes something
        assert (await count_landed(gateway), len(reader.reads)) == (0, 1)
        answers.start()  # it has forgotten all but the file
        await wait_until(lambda: not can_hand_over(gateway), timeout_s=60)
        await wait_until(lambda: can_hand_over(gateway), timeout_s=120)
        set_cost(60.0)
        split = [await ask(gateway, write_prompt(number), 24) for number in range(NUM_PROMPTS)]
        assert [text for text, _ in split] == [text for text, _ in wanted]
        assert (await count_landed(gateway), len(reader.reads)) == (NUM_PROMPTS, 2)
