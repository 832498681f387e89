"""Others on the same requests in the same run: transformers' continuous batching, and vLLM.

Whoever is not installed, or whose interface is another, is left out by name. All compute with
random weights of the same shapes in bf16; each is warm before it is timed.
"""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final

import torch

from benchmarks.gpu.bench import OURS, Bench, NotHere
from benchmarks.gpu.load import Streams, carry, create_request, create_settings, draw_prompt
from benchmarks.gpu.random_checkpoint import write_random_checkpoint
from benchmarks.gpu.random_network import create_random_executor
from benchmarks.gpu.served_hearth import write_tokenizer
from benchmarks.gpu.shapes import BLOCK_SIZE, QWEN_SMALL, Shapes, write_config
from benchmarks.harness import Figure, compute_ratios, summarise

_CONTEXT: Final = 2048


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """What everybody is asked: prompts all at once, answers of one length."""

    prompts: list[list[int]]
    num_tokens: int
    temperature: float = 0.6

    def to_rate(self, seconds: float) -> float:
        """Output tokens per second."""
        return len(self.prompts) * self.num_tokens / seconds


Measure = Callable[[Bench, Shapes, PeerLoad], float]
"""Output tokens per second of one provider. Raises: anything where it does not run."""


def measure_peers(bench: Bench) -> list[Figure]:
    """256 requests on 0.6B shapes, ours first, and the ratios."""
    shapes, rng = bench.find_shapes(QWEN_SMALL), Random(0)
    load = PeerLoad(
        [
            draw_prompt(rng, rng.randint(*bench.pick((100, 1024), (8, 32))), shapes.vocab_size)
            for _ in range(bench.pick(256, 4))
        ],
        bench.pick(256, 8),
    )
    providers: dict[str, Measure] = {
        OURS: _run_ours,
        "transformers, sdpa": _run_transformers,
        "vllm": _run_vllm,
    }
    figures: list[Figure] = []
    for provider, measure in providers.items():
        try:
            rate = measure(bench, shapes, load)
        except Exception as reason:
            if provider == OURS:
                raise
            bench.notes.append(f"{provider}: {reason!r}"[:300])
            continue
        finally:
            bench.free_memory()
        what = f"{QWEN_SMALL} beside others"
        figures.append(summarise(what, provider, "output", "tok/s", len(load.prompts), [rate]))
    return [*figures, *compute_ratios(figures, OURS)]


def _run_ours(bench: Bench, shapes: Shapes, load: PeerLoad) -> float:
    """The same load twice; the second counts."""
    longest = max(map(len, load.prompts)) + load.num_tokens
    executor = create_random_executor(
        shapes,
        bench.device,
        context_window=bench.pick(_CONTEXT, 512),
        num_blocks=len(load.prompts) * (longest // BLOCK_SIZE + 1),
    )
    requests = [
        create_request(index, prompt, load.num_tokens, load.temperature)
        for index, prompt in enumerate(load.prompts)
    ]
    settings = create_settings(len(requests), bench.pick(16_384, 512), prefix_caching=False)
    _, run = carry(executor, [Streams(requests), Streams(requests)], settings)
    executor.close()
    return load.to_rate(run.seconds)


def _run_transformers(bench: Bench, shapes: Shapes, load: PeerLoad) -> float:
    """`generate_batch` with a manager that stays; the second call counts."""
    if find_spec("transformers") is None:
        raise NotHere("not installed")
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        ContinuousBatchingConfig,
        GenerationConfig,
    )

    logging.getLogger("transformers").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shapes, bench.pick(_CONTEXT, 512))
        config = AutoConfig.from_pretrained(folder)
    with torch.device(bench.device):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    generation = GenerationConfig(
        max_new_tokens=load.num_tokens,
        do_sample=True,
        temperature=load.temperature,
        eos_token_id=-1,
        pad_token_id=0,
    )
    # It chooses its own sizes on a GPU; on a CPU it would take most of the memory.
    sizes = bench.pick(None, ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64))
    seconds, answers = 0.0, {}
    try:
        for _ in range(2):
            began_s = time.perf_counter()
            answers = model.eval().generate_batch(
                inputs=load.prompts,
                generation_config=generation,
                continuous_batching_config=sizes,
                persistent_manager=True,
            )
            seconds = time.perf_counter() - began_s
    finally:
        with suppress(Exception):  # the process ends soon, with or without this
            model.destroy_cached_continuous_batching_manager()
    lengths = {len(answer.generated_tokens) for answer in answers.values()}
    if len(answers) != len(load.prompts) or lengths != {load.num_tokens}:
        raise NotHere(f"{len(answers)} answers of {lengths} tokens")
    return load.to_rate(seconds)


def _run_vllm(bench: Bench, shapes: Shapes, load: PeerLoad) -> float:
    """`LLM.generate` on a checkpoint with random values; the second call counts."""
    if find_spec("vllm") is None:
        raise NotHere("not installed")
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        write_random_checkpoint(Path(folder), shapes, bench.pick(_CONTEXT, 512))
        write_tokenizer(Path(folder), shapes.vocab_size)
        engine: Any = LLM(
            model=folder,
            max_model_len=bench.pick(_CONTEXT, 512),
            enable_prefix_caching=False,
            gpu_memory_utilization=0.6,
        )
        sampling: Any = SamplingParams(
            max_tokens=load.num_tokens, temperature=load.temperature, ignore_eos=True
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in load.prompts]
        engine.generate(prompts, sampling)
        began_s = time.perf_counter()
        engine.generate(prompts, sampling)
        return load.to_rate(time.perf_counter() - began_s)
