"""Cores whose process is forked from one that has imported everything: there within a second.

Otherwise as `core_pair`, which starts an interpreter for each. Read next: `kill_rig`.
"""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from gpu_pool.core_executor import load_model
from gpu_pool.core_runner import run_core
from gpu_pool.core_settings import decode_core_settings, encode_core_settings
from tests.gpu_pool.transfer.core_pair import Core, CoreProcess

_NURSERY: Final = multiprocessing.get_context("forkserver")
_NURSERY.set_forkserver_preload([__name__, "pytest"])


class ForkedProcess:
    """A `CoreProcess`."""

    def __init__(self, path: Path) -> None:
        self._process = _NURSERY.Process(target=_run, args=(path,), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        process_id = self._process.pid
        assert process_id is not None
        return process_id

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.join()


class ForkedCore(Core):
    """As its base."""

    def launch(self, path: Path, environ: dict[str, str]) -> CoreProcess:
        assert not environ, "it has the nursery's"
        return ForkedProcess(path)

    def find_agent(self) -> int:
        """The process that holds its transfer engine."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [int(number) for task in tasks for number in task.read_text().split()]
        assert len(children) == 1, children
        return children[0]


def _run(path: Path) -> None:
    """The forked process: its parent is the nursery."""
    settings = decode_core_settings(path.read_bytes())
    own = msgspec.structs.replace(settings, parent_pid=os.getppid())
    path.write_bytes(encode_core_settings(own))
    sys.exit(run_core(path, load_model))
