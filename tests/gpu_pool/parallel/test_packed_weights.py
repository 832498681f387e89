"""Ranks of a model whose weights are packed answer as the whole model does."""

from pathlib import Path

import pytest

from gpu_pool.parallel.place import ParallelShape
from tests.gpu_pool.models.packed_checkpoint import write_packed
from tests.gpu_pool.parallel.rank_check import MAX_ERROR
from tests.gpu_pool.parallel.test_families import ask_ranks, ask_whole

SIZES = {"num_hidden_layers": 4, "tie_word_embeddings": True}
FORMS = ("gptq of 4 bits by activation", "awq", "int4 in groups with zeros", "fp8 per channel")


@pytest.mark.parametrize("form", FORMS)
def test_ranks_answer_as_the_whole_model_does(form: str, tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, form, ("qwen2", SIZES))
    whole = ask_whole(packed)
    for shape in (ParallelShape(2, 1), ParallelShape(1, 2)):
        divided = ask_ranks(packed, shape)
        assert divided.token_ids == whole.token_ids
        assert whole.measure_error(divided) <= MAX_ERROR
    wrong = ask_ranks(packed, ParallelShape(2, 1), repeats_shares=True)
    assert whole.measure_error(wrong) > 1000 * MAX_ERROR
