"""From nothing to a bill: the page is run as it stands, and prints what it says.

Two nodes in two regions, enrolment, residency, a budget that runs out, a signed bill, a token that
is disabled, a backup and a rotation, by real processes and nothing but the page's own commands.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fixtures.guide_page import read_blocks, run_page
from tests.fixtures.node_process import ROOT
from tests.integration.running_dev import choose_ports

PAGE = ROOT / "docs/first_try.md"
TIMEOUT_S = 600.0


def create_environ(folder: Path, ports: dict[str, str]) -> dict[str, str]:
    """A reader's environment, but for ports that nobody else has and a folder of its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HEARTH_", "PYTHON"))}
    return environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
        "COLUMNS": "200",
        "HEARTH_GATEWAY__LISTEN__PORT": ports["8787"],
        "HEARTH_GATEWAY__ADMIN__PORT": ports["8788"],
    }


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_the_page_prints_what_it_says(tmp_path: Path) -> None:
    """No command knows of this test: only the ports are others."""
    chosen = [*choose_ports(), choose_ports()[0]]
    ports = dict(zip(("8787", "8788", "8790", "8791"), map(str, chosen), strict=True))
    text = re.sub(r"\b87(?:87|88|90|91)\b", lambda found: ports[found[0]], PAGE.read_text("utf-8"))
    assert len(read_blocks(text)) > 10
    with tempfile.TemporaryDirectory(prefix="h-") as name:  # pipes below it have short paths
        environ = create_environ(Path(name), ports)
        faults = run_page(text, ROOT, environ, tmp_path / "output", TIMEOUT_S)
    assert not faults, "\n\n".join(faults)


def test_a_page_that_says_something_else_is_found_out(tmp_path: Path) -> None:
    """The control: one thing in each of these pages is not so."""
    page = "```sh\n{}\n```\n\n```text\n{}\n```\n"
    right = page.format("echo a  b; echo later; echo 429", "a b\n…\n4…9")
    assert run_page(right, tmp_path, os.environ, tmp_path / "output", 10) == []
    for wrong in (
        page.format("echo 200", "429"),
        page.format("echo a; echo b", "a"),
        page.format("echo a", "a\nb"),
        page.format("cat no-such-file; echo a", "a"),
        "```sh\necho nothing is said of this\n```\n",
        page.format("exit 0", "a"),
    ):
        faults = run_page(wrong, tmp_path, os.environ, tmp_path / "output", 10)
        assert len(faults) == 1, wrong
