"""A machine that has no process to spare for a transfer agent: tried again until it has."""

import errno
import os
import signal
import subprocess
import sys
from typing import Any, Final

import pytest

from gpu_pool.transfer.agent_client import AGENT_COMMAND
from gpu_pool.transfer_settings import TransferSettings
from tests.fixtures.many_handles import hold_handles
from tests.gpu_pool.transfer.peer import Peer, open_peer, wait_until

BLOCK_BYTES: Final = 64


class Machine:
    """Starts processes, or has none to spare."""

    def __init__(self) -> None:
        self.is_full = False
        self.num_refused = 0
        self._start = subprocess.Popen

    def start(self, *words: Any, **options: Any) -> Any:
        """In place of `subprocess.Popen`."""
        if self.is_full:
            self.num_refused += 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self._start(*words, **options)


def test_an_agent_that_lacks_something_while_it_starts_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The two lives after the first have no thread to spare for their engine."""
    program = (
        "import sys\n"
        "from gpu_pool.transfer import agent\n"
        "def lack(start, regions):\n"
        "    raise BlockingIOError('no thread to spare')\n"
        "agent.ENGINES['memory'] = lack\n"
        "sys.exit(agent.main(sys.argv[1:]))\n"
    )
    poor = (sys.executable, "-c", program)
    settings = TransferSettings(engine="memory")
    with (
        open_peer(settings, 4, BLOCK_BYTES) as prefill,
        open_peer(settings, 4, BLOCK_BYTES) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        monkeypatch.setattr(decode.client, "_command", poor)
        kill(decode)
        wait_until(lambda: decode.client.num_lives >= 3, "two lives that fail")
        assert decode.client.ready is None
        monkeypatch.setattr(decode.client, "_command", AGENT_COMMAND)
        wait_until(lambda: decode.client.ready is not None, "an agent")
        assert decode.fetch(1, prefill, 1).has_landed


def test_a_process_with_a_thousand_handles_hands_over_all_the_same() -> None:
    settings = TransferSettings(engine="memory")
    with (
        hold_handles(),
        open_peer(settings, 4, BLOCK_BYTES) as prefill,
        open_peer(settings, 4, BLOCK_BYTES) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        assert decode.fetch(1, prefill, 1).has_landed


def kill(peer: Peer) -> None:
    """Ends an agent at once."""
    process_id = peer.client.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def test_landings_go_on_once_an_agent_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr("gpu_pool.transfer.agent_client.subprocess.Popen", machine.start)
    settings = TransferSettings(engine="memory")
    with (
        open_peer(settings, 4, BLOCK_BYTES) as prefill,
        open_peer(settings, 4, BLOCK_BYTES) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        assert decode.fetch(1, prefill, 1).has_landed
        machine.is_full = True
        num_open = len(os.listdir("/proc/self/fd"))
        kill(decode)
        wait_until(lambda: machine.num_refused > 1, "an agent to be wanted twice")
        assert decode.client.ready is None
        assert len(os.listdir("/proc/self/fd")) <= num_open  # no try keeps a socket
        machine.is_full = False
        wait_until(lambda: decode.client.ready is not None, "an agent")
        assert decode.fetch(2, prefill, 1).has_landed
