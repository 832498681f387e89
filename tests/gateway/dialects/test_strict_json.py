"""JSON from strangers is decoded or refused, and never hurts the process."""

import contextlib
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from gateway.dialects.strict_json import decode_json


class StrictPoint(msgspec.Struct, forbid_unknown_fields=True):
    """A target that takes nothing else."""

    x: float | None = None
    n: int | None = None


class Point(msgspec.Struct):
    """A small target."""

    x: float | None = None
    n: int | None = None
    text: str | None = None


class Named(msgspec.Struct):
    """A target that lacks something."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z\-]+$(?!\n)")]


DECODER = msgspec.json.Decoder(Point)

BAD = {
    "empty": b"",
    "not JSON": b"nonsense",
    "an array": b"[]",
    "null": b"null",
    "a tail": b'{"x": 1} {"x": 2}',
    "NaN": b'{"x": NaN}',
    "Infinity": b'{"x": Infinity}',
    "-Infinity": b'{"x": -Infinity}',
    "a huge number": b'{"x": 1e999}',
    "huge digits": b'{"x": ' + b"9" * 5000 + b"}",
    "a wrong type": b'{"x": "1"}',
    "a float for an integer": b'{"n": 1.5}',
    "a key twice": b'{"x": 1, "x": 2}',
    "an escaped key twice": b'{"x": 1, "\\u0078": 2}',
    "an unknown key twice": b'{"y": 1, "y": 2}',
    "wrong UTF-8": b'{"text": "\xff"}',
    "wrong UTF-8 in a field that is ignored": b'{"y": "\xff"}',
    "wrong UTF-8 in a key": b'{"\xc3\x28": 1}',
    "a lone surrogate": b'{"text": "\\ud800"}',
    "a lone low surrogate": b'{"text": "\\udc00"}',
    "a lone surrogate in a field that is ignored": b'{"y": "\\ud800"}',
    "deep arrays": b'{"y": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep objects": b'{"y": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "deep and open": b"[" * 1_000_000,
    "a byte-order mark": b'\xef\xbb\xbf{"x": 1}',
    "UTF-16": '{"x": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "a\\ud800"}',
        b'{"text": "\\uD800 b"}',
        b'{"text": "\\\\\\ud800"}',
        b'{"text": "\\ud800\\ud800"}',
        b'{"\\ud800": 1}',
    ],
)
def test_half_of_a_surrogate_pair_is_named_wherever_it_is(body: bytes) -> None:
    with pytest.raises(
        InvalidRequest, match=r"`\\u[dD]800` at byte \d+ is half of a surrogate pair"
    ):
        decode_json(DECODER, body)


@pytest.mark.parametrize("body", [b'{"text": "\\\\ud800', b'{"text": "\\ud83d\\ude00'])
def test_what_only_looks_like_half_of_a_pair_is_not_blamed(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="truncated"):
        decode_json(DECODER, body)


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_what_is_not_good_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(DECODER, body)


@pytest.mark.parametrize(
    "body", [b'{"x": 1}', b'{"x": null, "unknown": [1, {"x": 2}]}', b'{"text": "\\ud83d\\ude00"}']
)
def test_good_json_is_taken_with_what_it_does_not_know(body: bytes) -> None:
    assert isinstance(decode_json(DECODER, body), Point)


def test_the_error_names_the_path() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(DECODER, b'{"x": []}')
    assert caught.value.param == "x"
    assert "`x`" in caught.value.message


def test_a_missing_field_is_named_with_its_path() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(msgspec.json.Decoder(Named), b"{}")
    assert caught.value.param == "name"
    with pytest.raises(InvalidRequest) as caught:
        decode_json(msgspec.json.Decoder(list[Named]), b'[{"name": "a"}, {}]')
    assert caught.value.param == "[1].name"


def test_a_pattern_is_shown_as_people_write_it() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(msgspec.json.Decoder(Named), b'{"name": "a b"}')
    assert caught.value.message.endswith(r"Expected `str` matching regex '^[a-z\-]+$'.")


def test_an_unknown_field_of_a_strict_form_is_answered_with_the_known_ones() -> None:
    decoder = msgspec.json.Decoder(StrictPoint)
    with pytest.raises(InvalidRequest) as caught:
        decode_json(decoder, b'{"z": 1}')
    assert caught.value.message.endswith("unknown field `z`. Known are: x, n.")


def test_the_error_does_not_repeat_what_the_client_sent() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(DECODER, b'{"n": "secret-words"}')
    assert "secret-words" not in caught.value.message


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_end_in_a_value_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(decode_json(DECODER, body), Point)
