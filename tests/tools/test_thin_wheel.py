"""A wheel without one of its packages installs, and has all the rest."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.thin_wheel import thin

FILES = {
    "kept/__init__.py": "VALUE = 7\n",
    "heavy/__init__.py": "",
    "heavy/data.bin": "x" * 10_000,
    "both-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: both\nVersion: 1.0\n",
    "both-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def write_wheel(folder: Path) -> Path:
    """One of two packages."""
    path = folder / "both-1.0-py3-none-any.whl"
    record = [f"{name},,\n" for name in (*FILES, "both-1.0.dist-info/RECORD")]
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in FILES.items():
            wheel.writestr(name, content)
        wheel.writestr("both-1.0.dist-info/RECORD", "".join(record))
    return path


def test_what_is_left_out_is_gone_and_the_rest_installs(tmp_path: Path) -> None:
    wheel, site = write_wheel(tmp_path), tmp_path / "site"
    size = wheel.stat().st_size
    thin(wheel, ["heavy"])
    assert wheel.stat().st_size < size - 10_000
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True)
    assert (site / "kept" / "__init__.py").read_text() == FILES["kept/__init__.py"]
    assert not (site / "heavy").exists()


def test_a_wheel_that_has_nothing_of_it_is_left_as_it_is(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    before = wheel.read_bytes()
    with pytest.raises(ValueError, match="nothing of other"):
        thin(wheel, ["other"])
    assert wheel.read_bytes() == before
    assert list(tmp_path.iterdir()) == [wheel]
