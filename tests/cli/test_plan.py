"""`hearth plan` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_pool.capacity.known_models import DEEPSEEK, KIMI, KIMI_TEXT, SCOUT

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "cli", "plan", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, cwd=ROOT, check=False
    )


def test_a_plan_is_a_table_with_a_reason_or_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(SCOUT)
    table = run(str(tmp_path), "--gpus", "2xH200-141G")
    assert table.returncode == 0, table.stderr
    assert "TENSOR  PIPELINE" in table.stdout
    assert "49,152 bytes a token" in table.stdout
    assert "keeps most KV" in table.stdout
    printed = run(str(tmp_path / "config.json"), "--gpus", "2xH200-141G", "--json")
    report = json.loads(printed.stdout)
    layouts = {(row["tensor"], row["pipeline"]) for row in report["layouts"]}
    assert layouts == {(1, 2), (2, 1)}
    tokens = [row["kv_tokens"] for row in report["layouts"]]
    assert tokens == sorted(tokens, reverse=True)
    assert f"{tokens[0]:,}" in table.stdout
    many = run(str(tmp_path), "--gpus", "80xH200-141G").stdout
    assert "A model has at most 64 GPUs: it cannot start on 80." in many
    assert "tensor_parallel = " not in many
    best = report["layouts"][0]
    settings = f"tensor_parallel = {best['tensor']}\npipeline_parallel = {best['pipeline']}\n"
    assert table.stdout.endswith(settings)


def test_weights_that_are_unpacked_are_told_and_no_settings_where_they_have_no_room(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_bytes(KIMI_TEXT)
    short = run(str(tmp_path), "--gpus", "8xH100-80G").stdout
    assert "1911.8 GiB, for which these GPUs have no room" in short
    assert "tensor_parallel" not in short
    roomy = run(str(tmp_path), "--gpus", "32xH100-80G").stdout
    assert "weights take 1911.8 GiB; KV tokens then: " in roomy
    assert "tensor_parallel = " in roomy


def test_weights_in_fp8_blocks_are_counted_as_they_stay_on_gpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(DEEPSEEK)
    planned = run(str(tmp_path), "--gpus", "8xH200-141G").stdout
    assert "As this version loads them, weights take 630.3 GiB; KV tokens then: 6,0" in planned
    assert planned.endswith("tensor_parallel = 1\npipeline_parallel = 8\n")


def test_what_no_node_would_load_is_planned_without_settings(tmp_path: Path) -> None:
    does_not = "This version does not load it as it is:"
    unknown = json.loads(KIMI) | {"architectures": ["KimiK99ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(unknown))
    printed = run(str(tmp_path), "--gpus", "32xH100-80G").stdout
    assert "keeps most KV" in printed
    assert f"{does_not} Architecture `KimiK99ForConditionalGeneration` is not" in printed
    assert "tensor_parallel = " not in printed
    (tmp_path / "config.json").write_bytes(KIMI)  # the control
    assert "tensor_parallel = " in run(str(tmp_path), "--gpus", "32xH100-80G").stdout


def test_tokens_without_a_bound_and_rings_without_room_are_called_so(tmp_path: Path) -> None:
    windows = json.loads(SCOUT)["text_config"] | {
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 4096,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(windows))
    assert "no bound\n" in run(str(tmp_path), "--gpus", "2xH200-141G").stdout
    report = json.loads(run(str(tmp_path), "--gpus", "2xH200-141G", "--json").stdout)
    assert report["layouts"][0]["kv_tokens"] is None
    crowded = run(str(tmp_path), "--gpus", "2xH200-141G", "--sequences", "100000").stdout
    assert "the rings of 100000 sequences are more than" in crowded


@pytest.mark.parametrize(
    ("gpus", "content", "said"),
    [
        ("eight H100", SCOUT, "written like 8xH100-80G"),
        ("2xH200-141G", b"{}", "Architecture `none` is not supported"),
        ("2xH200-141G", None, "cannot be read"),
        ("2xH200-141G --overhead-gib inf", SCOUT, "--overhead-gib is a number of GiB"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    tmp_path: Path, gpus: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    words = gpus.split() if "--" in gpus else [gpus]
    failed = run(str(tmp_path), "--gpus", *words)
    assert failed.returncode == 1
    assert said in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
