"""From a folder to an executor."""

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from contracts.settings import SettingsError
from gpu_pool.models.errors import CheckpointError
from gpu_pool.plan import ForwardPlan
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama


def settings_for(folder: Path, **changes: object) -> WorkerSettings:
    """One thread and few blocks unless told otherwise."""
    fields = {"model_dir": folder, "num_threads": 1, "num_blocks": 20} | changes
    return WorkerSettings(**fields)  # type: ignore[arg-type]


def test_the_executor_says_what_was_loaded(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, eos_token_id=[7, 9])
    info = create_executor(settings_for(tmp_path, block_size=32)).info
    (group,) = info.kv_groups
    assert (group.num_layers, group.block_bytes) == (3, 3 * 32 * 2 * 2 * 16 * 4)
    assert (info.block_size, info.num_blocks) == (32, 20)
    assert info.context_window == 640  # as much as the KV memory holds
    assert info.vocab_size == 300
    assert info.eos_token_ids == (7, 9)
    assert info.kv_dtype == "float32"
    assert info.max_in_flight == 1


def test_the_context_can_be_narrowed_but_not_widened(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, max_position_embeddings=256)
    for asked, given in ((100, 100), (10_000, 256), (None, 256)):
        info = create_executor(settings_for(tmp_path, context_window=asked)).info
        assert info.context_window == given


def test_the_revision_follows_the_weights(tmp_path: Path) -> None:
    revisions: list[str] = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_llama(tmp_path / name, seed=seed)
        revisions.append(create_executor(settings_for(tmp_path / name)).info.model_revision)
    assert revisions[0] == revisions[1] != revisions[2]
    assert len(revisions[0]) == 64


def test_a_checkpoint_in_several_files_gives_the_same_tokens(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "one")
    write_tiny_llama(tmp_path / "many", shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    outputs: list[list[list[int]]] = []
    for name in ("one", "many"):
        driver = PlanDriver(create_executor(settings_for(tmp_path / name)))
        outputs.append(driver.generate([driver.add([1, 2, 3])], 10))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(DtypeChoice.AUTO, "bfloat16"), (DtypeChoice.FLOAT32, "float32")],
)
def test_auto_computes_in_what_the_checkpoint_is_stored_in(
    tmp_path: Path, choice: DtypeChoice, expected: str
) -> None:
    write_tiny_llama(tmp_path, dtype=torch.bfloat16)
    executor = create_executor(settings_for(tmp_path, dtype=choice))
    assert executor.info.kv_dtype == expected
    driver = PlanDriver(executor)
    assert len(driver.generate([driver.add([1, 2, 3])], 4)[0]) == 4


def test_a_sequence_may_fill_the_whole_context(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, max_position_embeddings=100)
    driver = PlanDriver(create_executor(settings_for(tmp_path)))
    (output,) = driver.generate([driver.add([5] * 90)], 10)
    assert len(output) == 10


@pytest.mark.parametrize("block_size", [0, 8, 24, 128])
def test_an_odd_block_size_is_refused(tmp_path: Path, block_size: int) -> None:
    write_tiny_llama(tmp_path)
    with pytest.raises(SettingsError, match="block_size"):
        create_executor(settings_for(tmp_path, block_size=block_size))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        create_executor(settings_for(tmp_path))


def test_a_model_of_a_few_megabytes_runs_on_one_thread_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    write_tiny_llama(tmp_path)
    for asked, given in ((None, 1), (2, 2), (1, 1)):
        create_executor(settings_for(tmp_path, num_threads=asked))
        assert torch.get_num_threads() == given


def test_only_one_plan_may_be_in_flight(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    executor = create_executor(settings_for(tmp_path))
    executor.submit(ForwardPlan(1, (), (), ()))
    with pytest.raises(AssertionError, match="in flight"):
        executor.submit(ForwardPlan(2, (), (), ()))
    assert executor.collect().step == 1
    executor.close()
    with pytest.raises(AssertionError, match="closed"):
        executor.submit(ForwardPlan(3, (), (), ()))


def test_without_a_compiler_torch_computes_alone_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = DtypeChoice.BFLOAT16
    write_tiny_llama(tmp_path)
    prompts = [[1 + i % 200 for i in range(length)] for length in (3, 40)]
    for name in ("PATH", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    with capture_logs() as lines:
        wanted = settings_for(tmp_path, dtype=dtype, native_kernels=True)
        driver = PlanDriver(create_executor(wanted))
        outputs = driver.generate([driver.add(p) for p in prompts], 5)
    assert [len(tokens) for tokens in outputs] == [5, 5]
    (line,) = lines
    assert "torch alone" in line["event"]
    with capture_logs() as lines:  # who turned them off is told nothing
        switched_off = create_executor(settings_for(tmp_path, dtype=dtype, native_kernels=False))
    assert lines == []
    driver = PlanDriver(switched_off)
    assert driver.generate([driver.add(p) for p in prompts], 5) == outputs


def test_weights_may_come_from_a_loader_of_their_own(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)

    class OtherLoader(ModelLoader):
        def compute_revision(self) -> str:
            return "other"

    settings = settings_for(tmp_path)
    assert create_executor(settings, create_loader=OtherLoader).info.model_revision == "other"
    assert create_executor(settings).info.model_revision != "other"
