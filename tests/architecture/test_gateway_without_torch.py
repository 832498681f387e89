"""Gateway and node start in a second and in 120 MB, which they cannot with torch inside, and trace
nothing, and know no store of others, unless they are told to.
"""

import subprocess
import sys

import pytest

from tests.architecture.source_tree import ROOT

OPTIONAL = {"torch", "triton", "opentelemetry.exporter", "redis"}


def loads_torch(statement: str) -> bool:
    """Whether a fresh Python has one of what is optional in memory after this statement."""
    program = f"{statement}\nimport sys\nprint(bool({OPTIONAL} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip() == "True"


@pytest.mark.parametrize(
    "module", ["gateway.app", "gpu_pool.node_creation", "hot_standby.controller"]
)
def test_a_process_that_computes_nothing_has_no_torch(module: str) -> None:
    assert not loads_torch(f"import {module}")


def test_torch_in_the_process_is_seen() -> None:
    assert loads_torch("import sys, types; sys.modules['torch'] = types.ModuleType('torch')")
