"""What the tests of several models share."""

from pathlib import Path

import pytest

from tests.gpu_pool.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder)
    return folder
