"""What tests of the server share: a checkpoint, its text side, and what HF makes of it."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gpu_pool.server.text.model_text import ModelText
from gpu_pool.server.text.text_files import TextSources, load_model_text
from gpu_pool.server.text.text_threads import TextThreads
from tests.fixtures.random_checkpoint import write_random_checkpoint

SOURCES = TextSources(
    now=lambda: datetime(2024, 2, 3, tzinfo=UTC),
    monotonic_s=time.monotonic,
    draw_bits=random.Random(5).getrandbits,
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def model_text(checkpoint: Path) -> Iterator[ModelText]:
    with ThreadPoolExecutor(1) as threads:
        yield load_model_text(checkpoint, TextThreads(threads, 1), SOURCES)


@pytest.fixture(scope="session")
def hf_tokenizer(checkpoint: Path) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer
