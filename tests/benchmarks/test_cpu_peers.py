"""The benchmark beside others' servers says what it needs before it starts any."""

import sys
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
