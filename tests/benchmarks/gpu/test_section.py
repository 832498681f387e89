"""What a run on a GPU leaves behind, and what the script says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.random_network import SHAPES, describe_network
from benchmarks.gpu.section import Outcome, read_outcome, write_outcome
from benchmarks.gpu.sections import SECTIONS
from benchmarks.harness import Circumstances, summarise


def test_an_outcome_survives_its_file(tmp_path: Path) -> None:
    figure = summarise("kernel", "hearth", "rate", "GB/s", 8, [1.0, 2.0, 3.0])
    outcome = Outcome("kernels", 1.5, "", (figure,), Circumstances("H200", "abc", "torch=2", "now"))
    write_outcome(tmp_path, outcome)
    assert read_outcome(tmp_path / "kernels.json") == outcome


def test_sections_have_names_of_their_own() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_those_of_a_family(name: str) -> None:
    network = describe_network(SHAPES[name], 4096)
    assert network.vocab_size == SHAPES[name].vocab_size
    assert sum(group.num_layers for group in network.kv_groups) == SHAPES[name].num_layers


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="says nothing of machines with a GPU")
def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no NVIDIA GPU" in done.stdout
