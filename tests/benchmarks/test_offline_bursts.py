"""Engines without servers are asked the same bursts: ours answers them, and tells samples."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine.offline_bursts import ANSWER_TOKENS, PROMPT_TOKENS, SAMPLE, ask

TINY_CHAT = Path("gpu_pool/bundled/tiny_chat")


def test_our_engine_answers_every_burst() -> None:
    """In a process of its own, as the benchmark starts it."""
    words = "--counts 1 2 --vocabulary 1024 --threads 1 --kv-bytes 33554432 --seed 7"
    command = [sys.executable, "-m", "benchmarks.engine.offline_hearth", str(TINY_CHAT)]
    done = subprocess.run([*command, *words.split()], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(SAMPLE)]
    samples = [json.loads(line.removeprefix(SAMPLE)) for line in lines]
    metrics = ["prefill", "decode step", "output"]
    assert [(name, x) for name, _, x, _ in samples] == [
        (name, count) for count in (1, 2) for name in metrics
    ]
    assert all(value > 0 for *_, value in samples)


def test_a_step_is_what_a_whole_burst_takes_longer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three bursts of one token the last counts, whatever the first ones took."""
    monkeypatch.setattr("benchmarks.engine.offline_bursts.SETTLE_S", 0)
    options = argparse.Namespace(counts=[4], seed=1, vocabulary=1000)
    bursts = ask(options)
    asked = [next(bursts)]
    asked += [bursts.send(seconds) for seconds in (9.0, 9.0, 5.0, 0.5)]
    with pytest.raises(StopIteration):
        bursts.send(0.5 + 0.01 * (ANSWER_TOKENS - 1))
    assert [len(burst.prompts) for burst in asked] == [4] * 5
    assert [burst.num_tokens for burst in asked] == [4, 1, 1, 1, ANSWER_TOKENS]
    told = [json.loads(line.removeprefix(SAMPLE)) for line in capsys.readouterr().out.splitlines()]
    values = {name: value for name, _, _, value in told}
    assert values["prefill"] == pytest.approx(4 * PROMPT_TOKENS / 0.5)
    assert values["decode step"] == pytest.approx(10.0)
