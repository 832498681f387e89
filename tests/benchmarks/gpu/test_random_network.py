"""Random weights where no checkpoint is, and checkpoints of random weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.gpu.random_checkpoint import write_random_checkpoint
from benchmarks.gpu.random_network import SPREAD, RandomSource, create_random_executor
from benchmarks.gpu.shapes import SHAPES, TINY, describe_network
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

CONTEXT = 512


def test_a_random_executor_is_the_workers_own_with_all_that_settings_say() -> None:
    executor = create_random_executor(SHAPES[TINY], "cpu", context_window=CONTEXT, num_blocks=40)
    info = executor.info
    assert (info.num_blocks, info.context_window, info.kv_dtype) == (40, CONTEXT, "bfloat16")
    assert info.vocab_size == SHAPES[TINY].vocab_size
    executor.close()


def test_a_tensor_is_the_same_noise_whenever_it_is_asked_for() -> None:
    network = describe_network(SHAPES[TINY], CONTEXT)
    source = RandomSource(network, torch.float32, torch.device("cpu"))
    matrices = [name for name, shape in source.shapes.items() if len(shape) > 1]
    first, second = (source.read(name) for name in matrices[:2])
    assert torch.equal(first, source.read(matrices[0]))
    assert not torch.equal(first.flatten()[:64], second.flatten()[:64])
    assert abs(first.std().item() / SPREAD - 1) < 0.1
    assert torch.equal(source.read_rows(matrices[0], 3, 9), first[3:9])


def test_a_written_checkpoint_is_loaded_by_the_worker_and_looks_like_weights(
    tmp_path: Path,
) -> None:
    num_bytes = write_random_checkpoint(tmp_path, SHAPES[TINY], CONTEXT)
    tensors = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.nbytes for tensor in tensors.values()) == num_bytes
    matrix = tensors["model.embed_tokens.weight"].float()
    assert abs(matrix.std().item() / SPREAD - 1) < 0.1
    assert (tensors["model.norm.weight"] == 1).all()
    executor = create_executor(WorkerSettings(model_dir=tmp_path, num_blocks=40))
    assert executor.info.weights_bytes >= num_bytes
    executor.close()
