"""Enrolment tokens: whole or refused, and silent about their key."""

import pytest

from contracts.enrolment import PREFIX, Enrolment, format_enrolment, parse_enrolment
from contracts.errors import InvalidRequest
from contracts.ids import GatewayId, NodeId
from telemetry.redaction import redact

ENROLMENT = Enrolment(GatewayId("gateway-1"), NodeId("gpu-7"), bytes(range(32)), 1000)


def test_a_token_says_what_was_put_into_it() -> None:
    token = format_enrolment(ENROLMENT)
    assert parse_enrolment(f"  {token}\n") == ENROLMENT
    assert ENROLMENT.key.hex() not in repr(ENROLMENT)
    assert redact(f"join {token}") == f"join {PREFIX}***"


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_what_lost_a_part_or_has_another_is_refused(cut: int) -> None:
    token = format_enrolment(ENROLMENT)
    changed = token[:-cut] + ("A" if token[-cut] != "A" else "B") + token[len(token) - cut + 1 :]
    for text in (token[:-cut], changed, token.removeprefix(PREFIX), PREFIX, PREFIX + "ÿ" * 8):
        with pytest.raises(InvalidRequest):
            parse_enrolment(text)
