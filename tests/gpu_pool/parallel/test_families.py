"""Every family divided among ranks answers as it does whole; a wrong share is found.

The ranks are threads here; `test_parallel_executor` has real ones.
"""

from pathlib import Path
from typing import Any

import pytest

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.encoder_architectures import ENCODER_ARCHITECTURES
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import require_causal
from gpu_pool.parallel.place import ParallelShape, RankPlace
from gpu_pool.parallel.tensor_group import ALONE
from gpu_pool.weights.config import read_config
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.deepseek.test_model import V2, V3
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.family_coverage import find_missing, name_architectures
from tests.gpu_pool.models.gemma.test_model import GEMMA2, GEMMA3
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4
from tests.gpu_pool.parallel.rank_check import MAX_ERROR, Answers, ask
from tests.gpu_pool.parallel.thread_ranks import ThreadExecutor

ALTERNATING = ["sliding_attention", "full_attention"] * 2
QWEN_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
LLAMA4_LAYERS = {
    "layer_types": ["chunked_attention", "full_attention"] * 2,
    "no_rope_layers": [1, 0, 1, 0],
}
# Experts are a choice: where two are as good as equal, another order of additions changes it. The
# seeds below have no such tie.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 moe": ("qwen3_moe", QWEN_EXPERTS | {"norm_topk_prob": True}),
    "mistral": ("mistral", {"sliding_window": 40}),
    "mixtral": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "gemma 2": ("gemma2", GEMMA2),
    "gemma 3": ("gemma3_text", GEMMA3 | {"num_hidden_layers": 4, "layer_types": ALTERNATING}),
    "gpt-oss": ("gpt_oss", GPT_OSS),
    "deepseek v2": ("deepseek_v2", V2),
    "deepseek v3": ("deepseek_v3", V3 | {"attention_bias": True, "seed": 1}),
    "llama 4": ("llama4_text", LLAMA4 | LLAMA4_LAYERS),
}
UNDIVIDED = {
    *ENCODER_ARCHITECTURES,  # they run on one GPU
    # As their text parts are.
    "Gemma3ForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "Llama4ForConditionalGeneration",
}
QUICK = ("llama", "qwen3 moe")
"""The other families are for `make test-slow`."""
SHAPES = (ParallelShape(2, 1), ParallelShape(1, 2), ParallelShape(2, 2))


def describe(folder: Path, **fields: Any) -> WorkerSettings:
    """Settings in which errors show."""
    return WorkerSettings(
        model_dir=folder, dtype=DtypeChoice.FLOAT32, num_blocks=64, num_threads=1, **fields
    )


def ask_whole(folder: Path) -> Answers:
    """What one process that holds the whole model answers."""
    executor = create_executor(describe(folder))
    answers = ask(executor)
    executor.close()
    return answers


def ask_ranks(folder: Path, shape: ParallelShape, *, repeats_shares: bool = False) -> Answers:
    """What ranks answer."""
    executor = ThreadExecutor(describe(folder), shape, repeats_shares=repeats_shares)
    try:
        answers = ask(executor)
        for worker in executor.workers:
            runner: Any = worker._runner  # type: ignore[attr-defined]
            assert not runner._rows, "a rank keeps rows that are gone"
            assert not runner._lane._undrawn, "a rank waits for what nobody draws"
        return answers
    finally:
        executor.close()


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES],
)
def test_ranks_answer_as_the_whole_model_does(family: str, tmp_path: Path) -> None:
    model_type, changes = FAMILIES[family]
    folder = write_checkpoint(tmp_path, model_type, **({"num_hidden_layers": 4} | changes))
    whole = ask_whole(folder)
    for shape in SHAPES:
        divided = ask_ranks(folder, shape)
        error = whole.measure_error(divided)
        assert divided.token_ids == whole.token_ids
        assert error <= MAX_ERROR
        if shape.tensor == 1:
            assert error == 0  # between stages nothing is added in another order
    wrong = ask_ranks(folder, SHAPES[0], repeats_shares=True)
    assert whole.measure_error(wrong) > 1000 * MAX_ERROR


def test_no_family_is_forgotten() -> None:
    architectures = UNDIVIDED | name_architectures(kind for kind, _ in FAMILIES.values())
    assert find_missing(architectures) == set()
    assert find_missing(architectures - {"MistralForCausalLM"}) == {"Mistral"}


@pytest.mark.parametrize(
    ("model_type", "changes", "shape", "reason"),
    [
        ("llama", {}, ParallelShape(3, 1), "does not divide the model's 4 query heads"),
        (
            "qwen3",
            {"num_attention_heads": 6, "num_key_value_heads": 3},
            ParallelShape(2, 1),
            "3 KV",
        ),
        ("llama", {"vocab_size": 301}, ParallelShape(2, 1), "301 rows of `model.embed_tokens"),
        ("llama", {"intermediate_size": 97}, ParallelShape(2, 1), "97 rows of `model.layers.0.mlp"),
        ("llama", {}, ParallelShape(1, 4), "pipeline_parallel is 4; the model has 3 layers"),
        ("gpt_oss", GPT_OSS, ParallelShape(4, 1), "does not divide the model's 6 experts"),
        ("gemma3_text", GEMMA3, ParallelShape(1, 2), "stage 0 would have no layer with full"),
        ("deepseek_v3", V3, ParallelShape(8, 1), "4 query heads"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(
    model_type: str, changes: dict[str, Any], shape: ParallelShape, reason: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, model_type, **changes)
    network = require_causal(read_config(folder).network)
    with pytest.raises(CheckpointError, match=reason):
        network.share(RankPlace(shape, 0), ALONE)
