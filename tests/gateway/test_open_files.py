"""A gateway has as many files allowed as its connections take, or takes fewer connections."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, sys
from pathlib import Path
from gateway.open_files import fit_connections
from tests.gateway.running_gateway import create_settings_table, to_settings

folder, (soft, hard, wanted) = Path(sys.argv[1]), map(int, sys.argv[2:])
table = create_settings_table(folder, "sqlite://", [], limits={"max_connections": wanted})
settings = to_settings(table)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
fitted = fit_connections(settings)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], fitted.limits.max_connections)
"""
CASES = {
    "room for all": ((512, 512, 100), (512, 100)),
    "room for the asking": ((64, 2000, 1000), (1256, 1000)),
    "less room than connections": ((64, 500, 1000), (500, 250)),
    "much less": ((64, 100, 1000), (100, 50)),
}


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES.keys())
def test_a_gateway_takes_no_more_connections_than_files(
    tmp_path: Path, given: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), *map(str, given)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert tuple(map(int, done.stdout.split()[-2:])) == expected
