"""What is installed has the hashes of the locks; a changed byte is refused, nothing is missing."""

import hashlib
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.deploy.compose_file import ROOT
from tools.lock import LOCKS, PLATFORM_ONLY, UNLOCKED, drop_unlocked
from tools.setup_env import install_locked

ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
APART = {"torch", "hearth", "pip", "triton"}


def read(name: str) -> dict[str, str]:
    """The versions in a lock."""
    return dict(ENTRY.findall((ROOT / f"locks/{name}.txt").read_text(encoding="utf-8")))


def read_constraints() -> dict[str, str]:
    """The versions in `constraints.txt`, by the same spelling."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {normalise(name): version for name, version in pairs}


def normalise(name: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_the_constraints_versions_and_hashes_for_all_of_them(name: str) -> None:
    text, pinned = (ROOT / f"locks/{name}.txt").read_text(encoding="utf-8"), read_constraints()
    entries = re.split(r"\n(?=\S)", text.strip())[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    for package, version in read(name).items():
        assert pinned.get(package, version) == version, package
    assert not UNLOCKED.search("\n".join(read(name)))


def test_everything_that_is_installed_here_is_locked() -> None:
    installed = {normalise(found.metadata["Name"]) for found in distributions()}
    ours = {name for name in installed if name not in APART and not PLATFORM_ONLY.match(name)}
    assert ours - set(read("dev")) == set()
    assert len(ours) > 50


def test_torch_and_what_its_wheel_brings_are_left_out() -> None:
    text = "a==1 \\\n    --hash=sha256:0\ntorch==2 \\\n    --hash=sha256:1\nnvidia-x==3\nb==2\n"
    assert drop_unlocked(text) == "a==1 \\\n    --hash=sha256:0\nb==2\n"


def test_a_wheel_with_a_changed_byte_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel = write_wheel(tmp_path, "honest")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"hearth-lock-test==1.0 \\\n    --hash=sha256:{digest}\n")
    install(tmp_path, lock, "first")
    assert (tmp_path / "first/hearth_lock_test.py").read_text() == "SAID = 'honest'\n"

    write_wheel(tmp_path, "hOnest")
    with pytest.raises(SystemExit, match="installation failed"):
        install(tmp_path, lock, "second")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (tmp_path / "second").exists()
    # The control: whoever does not ask for hashes installs it.
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "third")]
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", *options]
    subprocess.run([*pip, "hearth-lock-test==1.0"], check=True)
    assert (tmp_path / "third/hearth_lock_test.py").read_text() == "SAID = 'hOnest'\n"


def install(folder: Path, lock: Path, target: str) -> None:
    """As `make` does, from `folder` alone."""
    options = ["--no-index", "--find-links", str(folder), "--target", str(folder / target)]
    install_locked(lock, python=Path(sys.executable), options=options)


def write_wheel(folder: Path, word: str) -> Path:
    """A wheel with one module that says `word`."""
    name = "hearth_lock_test-1.0"
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hearth_lock_test.py", f"SAID = '{word}'\n")
        archive.writestr(
            f"{name}.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: hearth-lock-test\nVersion: 1.0\n",
        )
        archive.writestr(
            f"{name}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return wheel
