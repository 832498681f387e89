"""Shapes of ids and names."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import (
    create_request_id,
    find_jurisdiction_fault,
    find_region_fault,
    is_account_id,
    is_jurisdiction,
    is_model_name,
    is_node_id,
)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_a_request_id_is_a_uuid7_that_carries_its_time(unix_ms: int, randomness: int) -> None:
    parsed = uuid.UUID(create_request_id(unix_ms, randomness))
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == unix_ms


@given(st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_different_randomness_gives_different_request_ids(one: int, other: int) -> None:
    same = create_request_id(1, one) == create_request_id(1, other)
    assert same == (one == other)


def test_request_ids_sort_by_time() -> None:
    assert create_request_id(1_000, 2**74 - 1) < create_request_id(1_001, 0)


@pytest.mark.parametrize(
    "name",
    ["@hearth/tiny-chat", "@cf/meta/llama-3.2-1b-instruct", "@hf/thebloke/zephyr-7b-beta-awq"],
)
def test_usual_model_names_are_names(name: str) -> None:
    assert is_model_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "llama",
        "@",
        "@cf",
        "@cf/",
        "@cf//x",
        "@cf/../x",
        "@cf/meta/x\n",
        "@cf/é",
        "@cf/" + "a" * 200,
        "@cf/a/b/c/d",
    ],
)
def test_malformed_model_names_are_refused(name: str) -> None:
    assert not is_model_name(name)


def test_account_ids_are_32_lower_case_hex_digits() -> None:
    assert is_account_id("0123456789abcdef" * 2)
    for wrong in ("", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n"):
        assert not is_account_id(wrong)


def test_node_ids_are_host_like_names() -> None:
    assert is_node_id("node-1.weur")
    for wrong in ("", "-a", "a b", "a/b", "a" * 64):
        assert not is_node_id(wrong)


@pytest.mark.parametrize("text", ["eu", "us_ca", "de-by", "a.b", "1", "x" * 63])
def test_a_jurisdiction_has_one_spelling(text: str) -> None:
    assert is_jurisdiction(text)


@pytest.mark.parametrize("text", ["", "EU", "e u", "eu\n", "-eu", "eü", "x" * 64, "eu,us", "\0"])
def test_what_is_spelt_otherwise_is_none(text: str) -> None:
    assert not is_jurisdiction(text)


@pytest.mark.parametrize("word", ["any", "none"])
def test_words_for_all_places_or_none_are_no_places_name(word: str) -> None:
    for fault in (find_region_fault(word), find_jurisdiction_fault(word)):
        assert fault is not None
        assert f"is called `{word}`" in fault
    assert not is_jurisdiction(word)
    for name in ("anywhere", "any-1", "nonesuch"):  # the control
        assert find_region_fault(name) is None
        assert find_jurisdiction_fault(name) is None
    fault = find_region_fault("we ur")
    assert fault is not None
    assert fault.startswith("`we ur` is not a region's name: it takes up to 63 letters")
