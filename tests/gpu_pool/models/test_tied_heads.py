"""A head that is the embedding is read once, and progress counts it once."""

from pathlib import Path

import pytest
from torch import Tensor

from gpu_pool.load_progress import LoadProgress, told_to
from gpu_pool.weights.reader import ParameterReader
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.tiny_llama import write_tiny_llama


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_head_is_the_embedding_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_tied: bool
) -> None:
    write_tiny_llama(tmp_path, tie_word_embeddings=is_tied)
    names: list[str] = []
    told: list[tuple[int, int]] = []
    read = ParameterReader.read

    def note(self: ParameterReader, name: str) -> Tensor:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(ParameterReader, "read", note)
    with told_to(LoadProgress(lambda *told_now: told.append(told_now), lambda: 0.0, 0.0)):
        executor = create_executor(
            WorkerSettings(model_dir=tmp_path, num_threads=1, num_blocks=4, native_kernels=False)
        )
    executor.close()
    assert len(names) == len(set(names))
    assert ("head" in names) is not is_tied
    assert told[-1][0] == told[-1][1]
