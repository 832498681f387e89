"""Headers of adapters' weights: sound ones are understood, each lie is found by its tensor."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from gateway.finetunes.weights_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    WeightsHeader,
    read_header_length,
    read_weights_header,
)
from tests.gateway.finetunes.adapter_files import (
    describe_pair,
    format_weights,
    make_weights,
    name_tensor,
)

MAX_RANK = 64
A, B = name_tensor(0, "A"), name_tensor(0, "B")


def read(header: Any) -> WeightsHeader:
    """What the header of a file comes to, be it JSON or bytes."""
    data = format_weights(header)
    assert read_header_length(data) == len(data) - LENGTH_BYTES
    return read_weights_header(data[LENGTH_BYTES:], MAX_RANK)


@pytest.mark.parametrize("middle", ["", ".default"])
def test_a_file_of_the_formats_own_library_is_understood(middle: str) -> None:
    data = make_weights(rank=4, num_layers=3, middle=middle)
    end = LENGTH_BYTES + read_header_length(data)
    assert read_weights_header(data[LENGTH_BYTES:end], MAX_RANK) == WeightsHeader(4, len(data))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_each_dtype_that_is_computed_is_taken(dtype: str) -> None:
    metadata = {"__metadata__": {"format": "pt"}}
    assert read(metadata | describe_pair(dtype=dtype)).rank == 8


def change(name: str, **fields: Any) -> dict[str, Any]:
    """A sound pair, one of whose tensors is described otherwise."""
    header = describe_pair()
    header[name] = header[name] | fields
    return header


def rename(new: str) -> dict[str, Any]:
    header = describe_pair()
    header[new] = header.pop(B)
    return header


OTHER_RANK = {
    name_tensor(1, "A"): {"dtype": "F32", "shape": [4, 1], "data_offsets": [1024, 1040]},
    name_tensor(1, "B"): {"dtype": "F32", "shape": [1, 4], "data_offsets": [1040, 1056]},
}
LIES: dict[str, tuple[Any, str]] = {
    "no tensors": ({}, "no tensors"),
    "metadata alone": ({"__metadata__": {"a": "b"}}, "no tensors"),
    "an array": ([], "no JSON object"),
    "cut JSON": (b'{"a":', "no JSON object"),
    "wrong UTF-8": (b'{"\xff": {}}', ""),
    "deep JSON": (b'{"a":' * 5000, ""),
    "metadata that is no text": ({"__metadata__": {"a": 1}} | describe_pair(), "__metadata__"),
    "half of a pair": ({A: describe_pair()[A]}, "q_proj.lora_A"),
    "an unknown dtype": (change(A, dtype="F8_E4M3"), "F8_E4M3"),
    "another unknown dtype": (change(B, dtype="I64"), "q_proj.lora_B"),
    "three axes": (change(A, shape=[8, 4, 4]), "q_proj.lora_A"),
    "an empty axis": (change(A, shape=[0, 16], data_offsets=[0, 0]), "q_proj.lora_A"),
    "a negative axis": (change(A, shape=[-8, -16]), "q_proj.lora_A"),
    "a huge axis": (change(A, shape=[8, 2**62]), "q_proj.lora_A"),
    "offsets that are turned": (change(A, data_offsets=[512, 0]), "q_proj.lora_A"),
    "offsets beyond the shape": (change(B, data_offsets=[512, 1028]), "q_proj.lora_B"),
    "offsets that are negative": (change(A, data_offsets=[-512, 0]), "q_proj.lora_A"),
    "an overlap": (change(B, data_offsets=[0, 512]), "begins at byte 0"),
    "a gap": (change(B, data_offsets=[516, 1028]), "begins at byte 516"),
    "a beginning that is left out": (
        {A: change(A, data_offsets=[4, 516])[A], B: change(B, data_offsets=[516, 1028])[B]},
        "begins at byte 4",
    ),
    "ranks of a pair that differ": (change(B, shape=[8, 16]), "different ranks"),
    "ranks of layers that differ": (describe_pair() | OTHER_RANK, "all have the same"),
    "a rank that is too large": (describe_pair(rank=128), "rank 128"),
    "a bias": (rename(A.replace(".weight", ".bias")), "lora_A.bias"),
    "a magnitude": (rename(A.replace("lora_A.weight", "lora_magnitude_vector")), "magnitude"),
    "an embedding": (rename("base_model.model.model.embed_tokens.lora_embedding_B"), "embed"),
    "a whole module": (rename("base_model.model.lm_head.modules_to_save.weight"), "lm_head"),
    "weights of the model itself": (rename("model.layers.0.self_attn.q_proj.weight"), "q_proj"),
    "an adapter of another name": (rename(B.replace(".weight", ".other.weight")), "other"),
    "the same under two names": (
        describe_pair() | {name_tensor(0, "A", ".default"): describe_pair()[A]},
        "two names",
    ),
    "no description": ({A: 5, B: 5}, "q_proj.lora_A"),
    "a field that is missing": ({A: {"dtype": "F32", "shape": [8, 16]}}, "q_proj.lora_A"),
}


@pytest.mark.parametrize(("header", "words"), LIES.values(), ids=LIES.keys())
def test_a_header_that_is_not_sound_is_refused_with_the_reason(header: Any, words: str) -> None:
    assert read(describe_pair()).rank == 8  # the control
    with pytest.raises(InvalidRequest) as caught:
        read(header)
    assert words in caught.value.message
    assert "adapter_model.safetensors" in caught.value.message
    assert len(caught.value.message) < 1000


def test_a_name_without_end_is_not_repeated_whole_nor_are_its_control_characters() -> None:
    for name in ("x" * 100_000, "a\nb\x1b[2J", "\u202e"):
        with pytest.raises(InvalidRequest) as caught:
            read({name: describe_pair()[A]})
        assert len(caught.value.message) < 1000
        assert caught.value.message.isprintable()


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_a_header_of_a_length_that_none_has_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(InvalidRequest, match="header of"):
        read_header_length(length.to_bytes(8, "little"))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_being_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_weights_header(data, MAX_RANK)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.sampled_from([A, B]), st.sampled_from(["dtype", "shape", "data_offsets"]), _values)
def test_no_value_of_any_field_does_more_than_that(name: str, field: str, value: Any) -> None:
    header = change(name, **{field: value})
    try:
        found = read(json.dumps(header).encode())
    except InvalidRequest:
        return
    assert found.rank == 8
