"""What a run on a GPU leaves behind, and what the script says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.report import format_report, list_verdicts
from benchmarks.gpu.section import OUTCOMES, Outcome, add_outcome, read_outcomes
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.shapes import LLAMA_8B, SHAPES, describe_network
from benchmarks.gpu.targets import TARGETS
from benchmarks.harness import Circumstances, Figure, summarise

CIRCUMSTANCES = Circumstances("H200", "abc", "torch=2", "now")


def create_outcome(
    section: str, *figures: Figure, error: str = "", is_rehearsal: bool = False
) -> Outcome:
    """An outcome with these figures."""
    return Outcome(section, 1.5, error, figures, CIRCUMSTANCES, ("a note",), is_rehearsal)


def test_of_each_section_the_last_outcome_counts_and_half_a_line_is_none(tmp_path: Path) -> None:
    assert read_outcomes(tmp_path) == []
    first, other = create_outcome("kernels", error="it broke"), create_outcome("tokens")
    again = create_outcome("kernels", summarise("k", "hearth", "rate", "GB/s", 8, [1.0, 2.0, 3.0]))
    for outcome in (first, other, again):
        add_outcome(tmp_path, outcome)
    with (tmp_path / OUTCOMES).open("a") as file:
        file.write('{"section": "tok')
    assert read_outcomes(tmp_path) == [again, other]
    assert read_outcomes(tmp_path, keeps_all=True) == [first, other, again]


def test_sections_have_names_of_their_own() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)


def test_what_must_be_right_comes_before_what_is_timed() -> None:
    assert [section.name for section in SECTIONS][:3] == ["kernels", "tokens", "lanes"]
    assert {section.part for section in SECTIONS} == {1, 2, 3}
    assert [section.part for section in SECTIONS] == sorted(section.part for section in SECTIONS)


def test_every_target_is_a_sections() -> None:
    assert {target.section for target in TARGETS} <= {section.name for section in SECTIONS}


@pytest.mark.parametrize(
    ("value", "verdict"), [(3.7, "the aim too"), (4.0, "met"), (4.3, "**not met**")]
)
def test_a_report_judges_a_target_by_its_median(value: float, verdict: str) -> None:
    step = summarise(f"{LLAMA_8B} decode", "hearth", "step", "ms", 1, [value])
    report = format_report([create_outcome("decode-step", step)], SECTIONS)
    (row,) = (line for line in report.splitlines() if f"{LLAMA_8B} decode: step" in line)
    assert verdict in row
    assert "a note" in report


def test_nothing_is_judged_by_a_rehearsal_or_a_section_that_failed() -> None:
    step = summarise(f"{LLAMA_8B} decode", "hearth", "step", "ms", 1, [1.0])
    assert list_verdicts([create_outcome("decode-step", step)])
    assert not list_verdicts([create_outcome("decode-step", step, is_rehearsal=True)])
    assert not list_verdicts([create_outcome("decode-step", step, error="it broke")])
    assert "REHEARSAL" in format_report([create_outcome("x", step, is_rehearsal=True)], SECTIONS)


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
