"""Greedy tokens of tiny models of many families, on the device and on the CPU, in fp32.

Where both are equally sure of two tokens, rounding decides: that is a tie, and what follows is no
longer compared. Read next: `load`.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import torch

from benchmarks.gpu.bench import OURS, Bench
from benchmarks.gpu.faults import Faults
from benchmarks.gpu.load import Streams, Trace, carry, create_request, create_settings, draw_prompt
from benchmarks.gpu.random_network import load_random
from benchmarks.gpu.shapes import BLOCK_SIZE, Shapes, write_config
from benchmarks.harness import Figure, summarise
from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.worker.lanes import LaneChoice
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings

_VOCAB_SIZE: Final = 512
_NUM_BLOCKS: Final = 400
_MAX_ROWS: Final = 32
_CONTEXT: Final = 1024
_PROMPT_LENGTHS: Final = (1, 17, 64, 200, 700)
_NUM_TOKENS: Final = 24
_SPREAD: Final = 0.15
"""Larger than usual, so that positions and neighbours show in what is drawn."""
_CPU_CHUNK, _CHUNK = 256, 512
_TIE: Final = 5e-3
"""Logarithms of two tokens that are no further apart may change places."""
_MOST_ERROR: Final = 2e-2
"""Of a token's logarithm."""


def _shape(
    architecture: str, num_layers: int = 3, *, is_tied: bool = False, **others: Any
) -> Shapes:
    """A tiny model of that architecture."""
    return Shapes(
        architecture,
        128,
        192,
        num_layers,
        4,
        2,
        _VOCAB_SIZE,
        is_tied,
        64,
        tuple(others.items()),
    )


_EXPERTS: Final[dict[str, Any]] = {"num_local_experts": 6, "num_experts_per_tok": 2}
_LATENT: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "n_group": 4,
    "topk_group": 2,
}
FAMILIES: Final = {
    "llama": _shape("LlamaForCausalLM"),
    "qwen2": _shape("Qwen2ForCausalLM"),
    "qwen3": _shape("Qwen3ForCausalLM", is_tied=True),
    "qwen3 moe": _shape(
        "Qwen3MoeForCausalLM", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48
    ),
    "mistral": _shape("MistralForCausalLM", sliding_window=40),
    "mixtral": _shape("MixtralForCausalLM", **_EXPERTS),
    "gemma 2": _shape(
        "Gemma2ForCausalLM",
        4,
        is_tied=True,
        sliding_window=40,
        query_pre_attn_scalar=64,
        attn_logit_softcapping=30.0,
        final_logit_softcapping=20.0,
    ),
    "gemma 3": _shape(
        "Gemma3ForCausalLM", 6, is_tied=True, sliding_window=40, query_pre_attn_scalar=64
    ),
    "gpt-oss": _shape("GptOssForCausalLM", 4, sliding_window=40, **_EXPERTS),
    "deepseek v3": _shape("DeepseekV3ForCausalLM", **_LATENT),
    "llama 4": _shape(
        "Llama4ForCausalLM",
        4,
        attention_chunk_size=48,
        intermediate_size_mlp=192,
        num_local_experts=4,
        num_experts_per_tok=1,
        floor_scale=64,
    ),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two answers compare up to the first tie. `error` is of logarithms."""

    num_equal: int
    num_ties: int
    error: float


def check_tokens(bench: Bench) -> list[Figure]:
    """Tokens and their logarithms equal the CPU's. Raises: `AssertionError` naming the family."""
    figures: list[Figure] = []
    everything: list[Agreement] = []
    lengths = bench.pick(_PROMPT_LENGTHS, _PROMPT_LENGTHS[:3])
    num_asked = len(lengths) * _NUM_TOKENS
    faults = Faults()
    for name, shapes in FAMILIES.items():
        with faults.gathered(name):
            found = _compare_devices(name, shapes, bench.device, lengths)
            error = max(agreement.error for agreement in found)
            what = f"logarithms {name} float32"
            figures.append(summarise(what, OURS, "error", "at most", num_asked, [error]))
            everything += found
    faults.conclude()
    num_equal = sum(agreement.num_equal for agreement in everything)
    num_ties = sum(agreement.num_ties for agreement in everything)
    num_all = 2 * num_asked * len(FAMILIES)
    return [
        *figures,
        summarise("tokens float32", OURS, "equal to the CPU's", "tokens", num_all, [num_equal]),
        summarise("tokens float32", OURS, "ties", "answers", num_all, [num_ties]),
    ]


def _compare_devices(
    name: str, shapes: Shapes, device: str, lengths: Sequence[int]
) -> list[Agreement]:
    """The device's answers beside the CPU's, with logarithms and without."""
    expected = _generate(shapes, "cpu", _CPU_CHUNK, lengths)
    scored = _generate(shapes, device, _CHUNK, lengths)
    # Whoever asks for no logarithms is drawn for on the device, from recorded steps.
    plain = _generate(shapes, device, _CHUNK, lengths, num_logprobs=None)
    pairs = [*zip(expected, scored, strict=True), *zip(expected, plain, strict=True)]
    return [compare(name, *pair) for pair in pairs]


def compare(name: str, expected: Trace, actual: Trace) -> Agreement:
    """The answers' agreement. Raises: `AssertionError` where a difference is no tie."""
    error = 0.0
    for place, (ours, theirs) in enumerate(zip(actual.token_ids, expected.token_ids, strict=True)):
        right = expected.scores[place]
        if ours != theirs:
            margin = right.top[0][1] - right.top[1][1]
            assert margin <= _TIE, (
                f"{name}: token {place} behind a prompt of {expected.num_prompt_tokens} is {ours} "
                f"and not {theirs}, which is likelier by {margin:.3g}"
            )
            return Agreement(place, 1, error)
        if not actual.scores:
            continue
        found = actual.scores[place].logprob
        assert right.logprob is not None
        assert found is not None
        error = max(error, abs(right.logprob - found))
        assert error <= _MOST_ERROR, f"{name}: the logarithm of token {place} is off by {error:.3g}"
    return Agreement(len(expected.token_ids), 0, error)


def create_tiny_executor(shapes: Shapes, device: str, lane: LaneChoice | None = None) -> Worker:
    """A family's model in fp32, whose weights are the same on every device."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shapes, _CONTEXT)
        settings = WorkerSettings(
            model_dir=Path(folder),
            dtype=DtypeChoice.FLOAT32,
            block_size=BLOCK_SIZE,
            num_blocks=_NUM_BLOCKS,
            max_rows=_MAX_ROWS,
            device=device,
        )
        return load_random(settings, torch.device("cpu"), _SPREAD, lane)


def _generate(
    shapes: Shapes,
    device: str,
    max_batch_tokens: int,
    lengths: Sequence[int],
    num_logprobs: int | None = 2,
) -> tuple[Trace, ...]:
    """Greedy answers, all prompts at once."""
    executor = create_tiny_executor(shapes, device)
    rng = Random(0)
    requests = [
        create_request(index, draw_prompt(rng, length, _VOCAB_SIZE), _NUM_TOKENS, 0.0, num_logprobs)
        for index, length in enumerate(lengths)
    ]
    settings = create_settings(len(requests), max_batch_tokens)
    (run,) = carry(executor, [Streams(requests)], settings, is_timed=False)
    executor.close()
    return run.traces
