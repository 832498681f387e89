"""Whole models: a decode step alone, the 256-request reference workload, and exact tokens.

Source of the workload: `random.seed(0)`; 256 requests at once; prompts and answers of 100 to 1,024
tokens; the figure is requested output tokens over wall seconds.
"""

import time
from pathlib import Path
from random import Random

import torch

import gpu_pool
from benchmarks.gpu.random_network import BLOCK_SIZE, SHAPES, create_random_runner
from benchmarks.harness import Figure, summarise
from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.core import create_scheduler
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import (
    BlockId,
    ExecutorInfo,
    ForwardPlan,
    KvGroup,
    KvGroupKind,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.runner.model_runner import ModelRunner
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

OURS = "hearth"
_CONTEXT = 4096
_TINY_CHAT = Path(gpu_pool.__file__).parent / "bundled" / "tiny_chat"


def check_tokens() -> list[Figure]:
    """The bundled model in fp32: greedy tokens equal the CPU's. Raises: `AssertionError`."""
    prompts = [[1 + (7 * i) % 500 for i in range(length)] for length in (1, 17, 200, 700)]
    expected, actual = (_generate_tiny(device, prompts) for device in ("cpu", "cuda"))
    assert actual == expected, "greedy tokens on the GPU differ from the CPU's"
    return [summarise("tiny-chat float32", OURS, "equal sequences", "of 4", 0, [4.0])]


def measure_decode_step() -> list[Figure]:
    """Milliseconds of a step of one sequence at a context of about 1,000 tokens."""
    figures: list[Figure] = []
    for name in SHAPES:
        runner = create_random_runner(name, num_blocks=128, context_window=_CONTEXT)
        samples = _time_single_sequence(runner, num_prompt=1000, num_steps=64)
        figures.append(summarise(f"{name} decode", OURS, "step", "ms", 1, samples))
        peak = torch.cuda.max_memory_allocated() / 2**30
        figures.append(summarise(f"{name} decode", OURS, "peak memory", "GiB", 1, [peak]))
        del runner
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return figures


def measure_workload() -> list[Figure]:
    """Output tokens per second of the reference workload on the smallest model."""
    return [_run_workload("qwen3-0.6b")]


def measure_large_workload() -> list[Figure]:
    """The same on 8B shapes."""
    return [_run_workload("llama-3.1-8b")]


def _generate_tiny(device: str, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers of the bundled model, 24 tokens each, all prompts in one batch."""
    settings = WorkerSettings(
        model_dir=_TINY_CHAT,
        dtype=DtypeChoice.FLOAT32,
        block_size=BLOCK_SIZE,
        num_blocks=512,
        device=device,
    )
    executor = create_executor(settings)
    scheduler = create_scheduler(SchedulerSettings(), executor.info, lambda: 1)
    for index, prompt in enumerate(prompts):
        scheduler.add(_create_request(index, tuple(prompt), 24, temperature=0.0))
    answers: list[list[int]] = [[] for _ in prompts]
    while scheduler.has_work:
        plan = scheduler.schedule(0)
        if plan is not None:
            executor.submit(plan)
            scheduler.update(executor.collect())
        output = scheduler.take_output()
        for tokens in output.tokens if output else ():
            answers[tokens.sequence_id] += tokens.token_ids
    executor.close()
    return answers


def _time_single_sequence(runner: ModelRunner, num_prompt: int, num_steps: int) -> list[float]:
    """Milliseconds of each decode step, by the host's clock with the device waited for."""
    num_blocks = -(-(num_prompt + num_steps + 8) // BLOCK_SIZE)
    blocks = tuple(BlockId(i) for i in range(num_blocks))
    sequence_id = SequenceId(0)
    sampling = SamplingParams(temperature=0.6, seed=1)
    new = NewSequence(sequence_id, tuple([5] * num_prompt), num_prompt, 0, sampling)
    first = ScheduledSequence(sequence_id, num_prompt, (blocks,), True)
    runner.execute(ForwardPlan(0, (), (new,), (first,)))
    samples: list[float] = []
    for step in range(1, num_steps + 1):
        started_s = time.perf_counter()
        work = ScheduledSequence(sequence_id, 1, ((),), True)
        runner.execute(ForwardPlan(step, (), (), (work,)))
        samples.append((time.perf_counter() - started_s) * 1000)
    return samples[8:]


def _run_workload(name: str) -> Figure:
    """The reference workload on one model, engine and scheduler in this process."""
    rng = Random(0)
    requests = [
        (
            tuple(rng.randint(0, 10_000) for _ in range(rng.randint(100, 1024))),
            rng.randint(100, 1024),
        )
        for _ in range(256)
    ]
    num_blocks = sum(-(-(len(prompt) + num) // BLOCK_SIZE) for prompt, num in requests)
    runner = create_random_runner(name, num_blocks, _CONTEXT)
    info = ExecutorInfo(
        kv_groups=(KvGroup(KvGroupKind.FULL, SHAPES[name].num_layers, 1),),
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        context_window=_CONTEXT,
        vocab_size=SHAPES[name].vocab_size,
        eos_token_ids=(),
        model_revision="random",
        kv_dtype="bfloat16",
        max_in_flight=1,
    )
    settings = SchedulerSettings(max_running=256, max_batch_tokens=16_384)
    scheduler = create_scheduler(settings, info, lambda: 1)
    for index, (prompt, num_tokens) in enumerate(requests):
        scheduler.add(_create_request(index, prompt, num_tokens, temperature=0.6))
    started_s = time.perf_counter()
    while scheduler.has_work:
        plan = scheduler.schedule(0)
        if plan is not None:
            scheduler.update(runner.execute(plan))
        scheduler.take_output()
    elapsed_s = time.perf_counter() - started_s
    rate = sum(num for _, num in requests) / elapsed_s
    return summarise(f"{name} 256 requests", OURS, "output", "tok/s", 256, [rate])


def _create_request(
    index: int, prompt: tuple[int, ...], num_tokens: int, temperature: float
) -> AddSequence:
    """A request that runs to its last token."""
    return AddSequence(
        sequence_id=SequenceId(index),
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        token_ids=prompt,
        sampling=SamplingParams(
            max_tokens=num_tokens, temperature=temperature, seed=index, ignore_eos=True
        ),
        priority=0,
        deadline_unix_ms=2**50,
        reject_if_busy=False,
    )
