"""Layouts of two published models against figures worked out by hand, and what a cut must hold."""

import json
from typing import Any

import pytest

from gpu_pool.capacity.gpus import Gpus, parse_gpus
from gpu_pool.capacity.layouts import ModelSize, explain, list_layouts
from gpu_pool.capacity.model_size import read_model_size
from gpu_pool.models.errors import CheckpointError
from tests.gpu_pool.capacity.known_models import KIMI, SCOUT

GIB = 1 << 30
H100S, H200S = parse_gpus("8xH100-80G"), parse_gpus("2xH200-141G")


@pytest.fixture(scope="module")
def kimi() -> ModelSize:
    return read_model_size(KIMI)


@pytest.fixture(scope="module")
def scout() -> ModelSize:
    return read_model_size(SCOUT)


def test_scout_keeps_every_token_in_its_12_global_layers_only(scout: ModelSize) -> None:
    kv = scout.measure_kv()
    assert kv.per_token == 12 * 4096 == 49_152
    assert kv.per_sequence == 36 * 8192 * 4096  # 1.125 GiB, however long
    # Counting all 48 layers as global would leave a quarter of the tokens.
    assert 56 * GIB // kv.per_token == 1_223_338
    assert 56 * GIB // (48 * 4096) == 305_834


def test_scout_weighs_what_its_parts_weigh(scout: ModelSize) -> None:
    experts = 48 * 16 * 3 * 5120 * 8192
    shared = 48 * 3 * 5120 * 8192
    attention = 48 * (2 * 5120 * 5120 + 2 * 5120 * 1024)
    ends = 2 * 202_048 * 5120
    small = 48 * (16 * 5120 + 2 * 5120) + 5120  # routers and norms
    assert scout.weight_bytes == 2 * (experts + shared + attention + ends + small)
    # With what it sees with, which Hearth does not load (about 0.87 B), this is 202.4 GiB.
    assert (scout.weight_bytes + 2 * 0.87e9) / GIB == pytest.approx(202.4, abs=0.1)


def test_scout_on_two_h200_keeps_the_published_number_of_tokens(scout: ModelSize) -> None:
    # What is published: more than 56 GiB and more than 1.2 M tokens. Before overhead 80.1 GiB are
    # left without its eyes.
    assert 2 * H200S.memory_bytes / GIB == pytest.approx(280.8, abs=0.05)
    tensor = next(lay for lay in list_layouts(scout, H200S, 0, 0) if lay.tensor == 2)
    left = 2 * tensor.tightest.room_bytes
    assert left / GIB == pytest.approx(80.1, abs=0.1)
    overhead = (left - 56 * GIB) // 2
    tensor = next(lay for lay in list_layouts(scout, H200S, overhead, 0) if lay.tensor == 2)
    assert tensor.num_tokens == 1_223_338
    # With 4 GiB of overhead on each GPU it is half as much again, rings of 8 sequences paid for.
    best = list_layouts(scout, H200S, 4 * GIB, 8)[0]
    assert 1_300_000 < best.num_tokens < 1_600_000


def test_kimi_weighs_what_is_stored(kimi: ModelSize) -> None:
    routed = 60 * 384 * 3 * 7168 * 2048
    assert routed * 4.5 / 8 / GIB == pytest.approx(531.6, abs=0.05)
    # 595 GB are published with its eyes (about 0.84 GB), which Hearth does not load.
    assert (kimi.weight_bytes + 0.84e9) / 1e9 == pytest.approx(595, abs=0.5)
    assert kimi.measure_kv().per_token == (512 + 64) * 2 * 61 == 70_272
    assert kimi.measure_kv().per_sequence == 0


def test_kimi_on_eight_h100_keeps_most_where_each_latent_is_stored_once(kimi: ModelSize) -> None:
    layouts = list_layouts(kimi, H100S, round(2.6 * GIB), 0)
    best = layouts[0]
    assert (best.tensor, len(best.stages)) == (1, 8)
    assert sorted(stage.num_layers for stage in best.stages) == [7, 7, 7, 8, 8, 8, 8, 8]
    # The tightest GPU has 73.1 GiB of weights and 6.6 left before overhead.
    assert best.tightest.weight_bytes / GIB == pytest.approx(73.1, abs=0.1)
    assert best.tightest.room_bytes / GIB == pytest.approx(6.6 - 2.6, abs=0.1)
    assert best.num_tokens == pytest.approx(466_000, rel=0.02)
    assert best.num_tokens * 70_272 / GIB == pytest.approx(30.5, rel=0.02)
    assert best.num_tokens > 262_144
    # Tensor ranks all keep the latent: a token costs eight times as much.
    wide = next(lay for lay in layouts if lay.tensor == 8)
    assert wide.stages[0].kv.per_token == 70_272
    assert 30 * GIB // 70_272 == 458_393
    assert 30 * GIB // (8 * 70_272) == 57_299
    assert "8 times the memory" in explain(best, layouts)


def test_stages_hold_every_layer_and_both_ends_once(kimi: ModelSize, scout: ModelSize) -> None:
    for size, gpus in ((kimi, H100S), (scout, H200S)):
        for layout in list_layouts(size, gpus, 0, 0):
            assert sum(stage.num_layers for stage in layout.stages) == size.num_layers
            held = layout.tensor * sum(stage.weight_bytes for stage in layout.stages)
            assert held >= size.weight_bytes  # what is whole on every rank counts again
            if layout.tensor == 1:
                assert held == size.weight_bytes


def describe(**fields: Any) -> bytes:
    """A small Llama."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    return json.dumps(config | fields).encode()


def test_heads_are_split_as_far_as_they_go_and_copied_beyond() -> None:
    size = read_model_size(describe())
    assert [size.measure_kv(tensor).per_token for tensor in (1, 2, 4)] == [512, 256, 256]
    assert size.can_split(4, 1)
    assert not size.can_split(3, 1)


def test_a_tied_head_is_stored_once_and_held_at_both_ends() -> None:
    tied = read_model_size(describe(tie_word_embeddings=True))
    apart = read_model_size(describe(tie_word_embeddings=False))
    table = 1000 * 64 * 2
    assert apart.weight_bytes - tied.weight_bytes == table
    pair = Gpus(2, "small", 10**9)
    for size in (tied, apart):
        piped = next(lay for lay in list_layouts(size, pair, 0, 0) if lay.tensor == 1)
        assert sum(stage.weight_bytes for stage in piped.stages) == apart.weight_bytes


def test_what_does_not_fit_is_said() -> None:
    size = read_model_size(describe())
    layouts = list_layouts(size, Gpus(1, "thimble", 1000), 0, 0)
    assert [layout.num_tokens for layout in layouts] == [-1]
    assert "No layout fits" in explain(layouts[0], layouts)


@pytest.mark.parametrize("words", ["8xH100", "H100-G", "0xH100-80G", "x", "8 H100-80G", "-1xA-1G"])
def test_gpus_in_other_words_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match="written like 8xH100-80G"):
        parse_gpus(words)


def test_gpus_that_are_not_known_have_what_they_say() -> None:
    assert parse_gpus("4xL40S-48G") == Gpus(4, "L40S-48G", 48 * 10**9)
    assert parse_gpus("h100-80g".upper()).memory_bytes == 81_559 << 20


def test_an_unknown_packing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="bitsandbytes"):
        read_model_size(describe(quantization_config={"quant_method": "bitsandbytes"}))
