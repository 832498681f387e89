"""Names of prompts' beginnings, as bytes and back."""

import pytest

from contracts.prefix_keys import KEY_BYTES, pack_keys, unpack_keys


@pytest.mark.parametrize("keys", [(), (0,), (2**64 - 1, 1, 2**63)])
def test_names_come_back_in_their_order(keys: tuple[int, ...]) -> None:
    packed = pack_keys(keys)
    assert len(packed) == len(keys) * KEY_BYTES
    assert unpack_keys(packed) == keys


def test_they_are_little_endian_and_a_rest_is_no_name() -> None:
    assert pack_keys((1,)) == b"\1" + b"\0" * 7
    assert unpack_keys(b"\2" + b"\0" * 7 + b"rest") == (2,)
    assert unpack_keys(b"rest") == ()
