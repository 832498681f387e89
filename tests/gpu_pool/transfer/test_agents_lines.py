"""What an engine's library says of itself while all is well is not in the node's log."""

import re
from typing import Final

import pytest

from gpu_pool.transfer import agent_client
from tests.gpu_pool.transfer.peer import need_engine, open_peers

_CHATTER: Final = re.compile(r"^I\d{4} ", re.MULTILINE)
"""Lines of glog that nobody has to read."""


@pytest.mark.parametrize("is_told", [True, False])
def test_mooncake_says_nothing_while_all_is_well(
    is_told: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The control is one that is not told to be quiet."""
    need_engine("mooncake")
    if not is_told:
        monkeypatch.setattr(agent_client, "_ENVIRON", {})
    with open_peers("mooncake", 16, 1024) as (prefill, decode):
        assert decode.fetch(1, prefill, 16).has_landed
    assert bool(_CHATTER.search(capfd.readouterr().err)) != is_told
