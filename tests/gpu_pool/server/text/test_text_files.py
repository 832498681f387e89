"""What is read of a checkpoint's files, in the forms that are found in the wild."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import UnsupportedFeature
from contracts.inference import ChatMessage, ChatPrompt
from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.text_files import load_model_text
from gpu_pool.server.text.text_threads import TextThreads
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gpu_pool.server.conftest import SOURCES

HELLO = ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),))


def load(directory: Path) -> ModelText:
    with ThreadPoolExecutor(1) as threads:
        return load_model_text(directory, TextThreads(threads, 1), SOURCES)


def rewrite(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def test_a_template_may_be_an_option_a_list_or_a_file(tmp_path: Path) -> None:
    directory = write_random_checkpoint(tmp_path)
    options = directory / "tokenizer_config.json"
    template = json.loads(options.read_text(encoding="utf-8"))["chat_template"]
    expected = load(directory).encoder.encode(HELLO, 4096)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    rewrite(options, chat_template=named)
    assert load(directory).encoder.encode(HELLO, 4096) == expected
    rewrite(options, chat_template="overruled by the file")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert load(directory).encoder.encode(HELLO, 4096) == expected


def test_without_options_there_is_no_template(tmp_path: Path) -> None:
    directory = write_random_checkpoint(tmp_path)
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(UnsupportedFeature, match="template"):
        load(directory).encoder.encode(HELLO, 4096)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_checkpoint_with_a_bad_file_is_refused(
    tmp_path: Path, name: str, content: str | None
) -> None:
    directory = write_random_checkpoint(tmp_path)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content, encoding="utf-8")
    with pytest.raises(UnsupportedFeature, match=name):
        load(directory)


def test_the_context_window_is_the_checkpoints(tmp_path: Path) -> None:
    assert load(write_random_checkpoint(tmp_path, context_window=1234)).context_window == 1234
