"""Where a node listens."""

import pytest

from gpu_pool.connection_settings import ListenSettings


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("node", False)],
)
def test_loopback_is_recognised(host: str, is_loopback: bool) -> None:
    assert ListenSettings(host=host).is_loopback is is_loopback
