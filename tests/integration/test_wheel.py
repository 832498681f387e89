"""The wheel, installed into an empty environment far from the checkout, runs `hearth dev`.

Its dependencies are lent by this environment, through a path file; Hearth itself is not.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.account_client import MODEL
from tests.integration.running_dev import start_dev

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel in it."""

    python: Path
    hearth: Path
    site_packages: Path


def run(*command: object, cwd: Path) -> str:
    """What a command that must succeed prints."""
    result = subprocess.run(
        list(map(str, command)), capture_output=True, check=False, text=True, cwd=cwd, timeout=110
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def copy_checkout(target: Path) -> None:
    """Every file that is in the repository or about to be, so that the build leaves no trace."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT)
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("wheel")
    checkout, prefix = folder / "checkout", folder / "venv"
    checkout.mkdir()
    copy_checkout(checkout)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(*pip, "wheel", *options, checkout, cwd=folder)
    shutil.rmtree(checkout)
    (wheel,) = folder.glob("hearth-*.whl")
    venv.create(prefix, with_pip=False, symlinks=True)
    python = prefix / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    report = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(run(python, "-c", report, cwd=folder).strip())
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")
    return Environment(python, prefix / "bin" / "hearth", site_packages)


@pytest.mark.slow
def test_every_package_comes_from_the_wheel(environment: Environment, tmp_path: Path) -> None:
    packages = ("cli", "contracts", "gateway", "gpu_pool", "migrations", "tenancy")
    report = f"import {', '.join(packages)}; print(*(p.__file__ for p in ({', '.join(packages)})))"
    for file in run(environment.python, "-c", report, cwd=tmp_path).split():
        assert Path(file).is_relative_to(environment.site_packages)
    assert run(environment.hearth, "--version", cwd=tmp_path).startswith("hearth 0.")


@pytest.mark.slow
def test_the_installed_hearth_dev_serves_a_request(
    environment: Environment, tmp_path: Path
) -> None:
    # Folders with the names of our packages, where the person happens to stand, change nothing.
    for name in ("gateway", "gpu_pool", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong package')")
    command = (str(environment.hearth),)
    with start_dev(tmp_path / "state", command=command, cwd=tmp_path) as dev:
        response = httpx.post(
            f"{dev.account_url}/ai/run/{MODEL}",
            headers={"Authorization": f"Bearer {dev.access.api_token}"},
            json={"prompt": "Hi", "max_tokens": 4},
            timeout=60,
        )
        assert response.status_code == 200
        answer = [environment.hearth, "chat", "--dir", dev.home.root, "--once", "What is Hearth?"]
        assert run(*answer, cwd=tmp_path).strip()
