"""Every section rehearsed on a CPU: the script for GPUs does not rot."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.section import Section, read_outcomes
from benchmarks.gpu.sections import SECTIONS
from tests.gpu_pool.kernels.triton_cases import needs_triton

pytestmark = pytest.mark.timeout(600)  # triton's interpreter, on machines that others use

INTERPRETED = {"descriptor-linear", "kernels", "rates", "small-linear"}
SLOW = {"http", "peers", "start", "large-start"}
ALONE = [section for section in SECTIONS if section.name in INTERPRETED]
CHEAP = [section for section in SECTIONS if section.name not in INTERPRETED | SLOW]


@pytest.mark.parametrize("section", CHEAP, ids=lambda section: section.name)
def test_a_section_runs_without_a_gpu(section: Section) -> None:
    check_rehearsal(section)


@needs_triton
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # a temperature of 0
@pytest.mark.parametrize("section", ALONE, ids=lambda section: section.name)
def test_kernels_run_in_the_interpreter(section: Section) -> None:
    check_rehearsal(section)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_section_with_processes_of_its_own_runs_without_a_gpu(name: str) -> None:
    check_rehearsal(next(section for section in SECTIONS if section.name == name))


def check_rehearsal(section: Section) -> None:
    """It measures something."""
    bench = Bench(device="cpu", is_rehearsal=True, limit_s=60, price_per_hour=3)
    figures = section.measure(bench)
    assert figures
    assert all(figure.p20 <= figure.p50 <= figure.p80 for figure in figures)


def test_the_script_rehearses_resumes_and_says_what_it_left_out(tmp_path: Path) -> None:
    report, out = tmp_path / "report.md", tmp_path / "out"
    options = ["--rehearse", "--only", "cycles", "--out", str(out), "--report", str(report)]
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REHEARSAL" in done.stdout
    assert "needs an NVIDIA GPU" in done.stdout
    (outcome,) = read_outcomes(out)
    assert outcome.is_rehearsal
    assert not outcome.error
    assert "| cycles |" in report.read_text()
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert "cycles: done before" in again.stdout
