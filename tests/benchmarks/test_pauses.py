"""How long answers stop beside prompts, on the real core and a small model."""

from argparse import Namespace
from pathlib import Path

from benchmarks.engine import bench_burst
from benchmarks.engine.bench_pauses import Beside, describe
from benchmarks.engine.one_thread import measure


def test_chats_follow_one_another_and_prompts_come_in_between(tmp_path: Path) -> None:
    options = Namespace(
        shapes="tiny", chats=2, prompt=80, interval=0.2, seconds=1.0, max_pause_ms=25
    )
    run = measure(tmp_path, options, Beside(options))
    lengths = [trace.num_prompt_tokens for trace in run.traces]
    assert 2 <= lengths.count(80) <= 5
    assert lengths.count(20) >= 2
    assert all(trace.is_over for trace in run.traces)
    by_metric = {figure.metric: figure.p50 for figure in describe(run, options)}
    assert 0 < by_metric["gap p50"] <= by_metric["longest gap"]
    assert by_metric["TTFT of prompts p50"] > by_metric["gap p50"]


def test_a_burst_is_answered_to_its_end(tmp_path: Path) -> None:
    options = Namespace(
        shapes="tiny", count=5, prompt=40, answer=6, accounts=2, max_pause_ms=25, record=False
    )
    run = bench_burst.compute(tmp_path, options)
    assert [len(trace.token_s) for trace in run.traces] == [6] * 5
    by_metric = {figure.metric: figure.p50 for figure in bench_burst.describe(run, options)}
    assert 0 < by_metric["TTFT p50"] <= by_metric["last first token"] <= by_metric["all done"]
    assert 0 < by_metric["gap p90"] <= by_metric["longest gap"]
