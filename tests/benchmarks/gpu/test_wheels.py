"""Packages that come along to a machine without a network."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu.wheels import install_wheels

NAME = "hearth_travelling"
USE = f"""
import sys
from pathlib import Path
from benchmarks.gpu.wheels import install_wheels
print(install_wheels(Path(sys.argv[1]), Path(sys.argv[2]), {NAME!r}))
import {NAME}, subprocess
subprocess.run([sys.executable, "-c", "import {NAME}; print({NAME}.WHERE)"], check=True)
"""


def write_wheel(folder: Path) -> None:
    """A package of one line, as a wheel."""
    about = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{NAME}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{NAME}/__init__.py", "WHERE = __file__\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_wheels_are_installed_where_the_sign_is_missing_and_children_find_them(
    tmp_path: Path,
) -> None:
    write_wheel(tmp_path)
    site = tmp_path / "site"
    for _ in range(2):  # the second time they are there
        done = subprocess.run(
            [sys.executable, "-c", USE, str(tmp_path), str(site)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(str(site / NAME))


def test_nothing_is_installed_where_all_is_there(tmp_path: Path) -> None:
    assert install_wheels(tmp_path, tmp_path / "site") is None
    assert not (tmp_path / "site").exists()


def test_a_machine_that_lacks_packages_and_has_no_wheels_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make gpu-wheels"):
        install_wheels(tmp_path, tmp_path / "site", NAME)
