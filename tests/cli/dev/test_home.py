"""The state folder: private, owned by one process, its access file whole at any time."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.dev.home import DevAccess, DevHome, HomeLock
from cli.terminal import CommandFailed

ACCESS = DevAccess(
    base_url="http://127.0.0.1:8787",
    admin_url="http://127.0.0.1:8788",
    account_id="0" * 32,
    api_token="api",
    admin_token="admin",
    models=("@hearth/tiny-chat",),
)
HOLD_LOCK = """
import sys
from pathlib import Path
from cli.dev.home import DevHome, HomeLock
with HomeLock(DevHome(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> DevHome:
    home = DevHome(tmp_path / "state")
    home.create()
    return home


def test_the_state_folder_is_closed_to_others_even_when_it_was_open(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir(mode=0o755)
    home = DevHome(root)
    home.create()
    assert mode_of(root) == 0o700
    assert mode_of(home.logs) == 0o700


def test_a_folder_that_cannot_be_made_is_reported_as_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match="Cannot create"):
        DevHome(tmp_path / "file" / "state").create()


def test_the_access_file_comes_back_as_written_and_only_its_owner_reads_it(home: DevHome) -> None:
    old_umask = os.umask(0)
    try:
        home.write_access(ACCESS)
    finally:
        os.umask(old_umask)
    assert home.read_access() == ACCESS
    assert mode_of(home.access) == 0o600
    assert [path.name for path in home.root.iterdir() if path.name.startswith(".dev")] == []


@pytest.mark.parametrize("content", ["", "{", '{"base_url": 1}', "\xff"])
def test_a_damaged_access_file_counts_as_none(home: DevHome, content: str) -> None:
    home.access.write_bytes(content.encode("latin-1"))
    assert home.read_access() is None


def test_a_second_process_is_refused_until_the_first_is_gone(home: DevHome) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CommandFailed, match=f"process {holder.pid}.*--dir"), HomeLock(home):
            pass
    finally:
        holder.kill()  # no chance to clean up: the system has to drop the lock
        holder.communicate()
    with HomeLock(home):
        pass
