"""The benchmark beside others' servers says what it needs before it starts any, and leaves none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.engine.bench_cpu_peers import main


def test_without_peers_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_cpu_peers", "--peers", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert f"benchmarks.engine.cpu_peers {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


SERVE = """
import sys, time
from pathlib import Path
from benchmarks.engine.cpu_servers import Launch, run

sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
with run(Launch("sleeper", [sleep, sleep], 1, "m"), Path(sys.argv[1])) as processes:
    print(*[process.pid for process in processes], flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """False for a process that is gone, or waits to be forgotten."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_who_is_told_to_end(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path / "log")]
    benchmark = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert benchmark.stdout is not None
    with benchmark.stdout:
        pids = [int(word) for word in benchmark.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    benchmark.send_signal(how)
    try:
        if how is signal.SIGTERM:
            assert benchmark.wait(60) == 128 + how
            assert not any(map(is_alive, pids))
        else:  # the control: nobody has ended them
            benchmark.wait(60)
            time.sleep(0.2)
            assert all(map(is_alive, pids))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)
