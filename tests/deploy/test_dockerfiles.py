"""The Dockerfiles copy what exists, install what the code imports and run without root."""

import ast
import re
import sys
import tomllib
from importlib import metadata

import pytest

from tests.deploy.compose_file import ROOT

DOCKERFILES = sorted(ROOT.glob("deploy/Dockerfile.*"))
OURS = {"benchmarks", "cli", "contracts", "gateway", "gpu_pool", "hot_standby", "migrations"}
OURS |= {"telemetry", "tenancy"}
# What an extra or an import inside a command brings; the images do not need it.
OPTIONAL = {"huggingface_hub", "triton", "cuda", "readline", "nixl_cu12", "mooncake"}
OPTIONAL |= {"opentelemetry", "requests"}  # both of the extra `otel`
IMAGES = {
    "gateway": ["cli", "contracts", "telemetry", "gateway", "migrations", "tenancy"],
    "node": ["cli", "contracts", "telemetry", "gpu_pool"],
}


def list_copied(text: str) -> list[str]:
    """Sources of all COPY lines that read the build context."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def list_missing(text: str) -> list[str]:
    """Copied sources that are not in the repository."""
    return [source for source in list_copied(text) if not (ROOT / source).exists()]


def list_ignored(text: str, ignore: str) -> list[str]:
    """Copied sources that .dockerignore keeps out of the build."""
    ignored = {line.strip().rstrip("/") for line in ignore.splitlines()}
    return [source for source in list_copied(text) if source in ignored]


def list_required(image: str) -> set[str]:
    """Names in the image's list of requirements, without extras."""
    lines = (ROOT / f"deploy/{image}-requirements.txt").read_text(encoding="utf-8").splitlines()
    return {line.partition("[")[0] for line in lines if line and not line.startswith("#")}


def list_imported(packages: list[str]) -> set[str]:
    """Top-level names of other people's packages that `packages` import anywhere."""
    names: set[str] = set()
    for package in packages:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names.add((node.module or "").partition(".")[0])
    return names - OURS - OPTIONAL - set(sys.stdlib_module_names)


def list_uninstalled(imported: set[str], required: set[str]) -> list[str]:
    """Imported names that no required distribution provides."""
    providers = metadata.packages_distributions()
    wanted = {name.lower().replace("_", "-") for name in required}
    return sorted(
        name
        for name in imported
        if wanted.isdisjoint(d.lower().replace("_", "-") for d in providers.get(name, ()))
    )


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_can_be_built_anywhere_and_does_not_run_as_root(dockerfile) -> None:
    text = dockerfile.read_text(encoding="utf-8")
    assert list_missing(text) == []
    assert list_ignored(text, (ROOT / ".dockerignore").read_text(encoding="utf-8")) == []
    assert "# syntax" not in text
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] == "10001:10001"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_copies_every_package_of_the_wheel(dockerfile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {name for name in include if "." not in name and (ROOT / name).is_dir()}
    assert packages <= set(list_copied(dockerfile.read_text(encoding="utf-8")))


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_all_that_its_code_imports(image: str) -> None:
    required = list_required(image)
    assert list_uninstalled(list_imported(IMAGES[image]), required) == []
    # The control: the same check notices that one is missing.
    assert list_uninstalled(list_imported(IMAGES[image]), required - {"msgspec"}) == ["msgspec"]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_only_what_the_project_declares(image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[\[>=;<]", entry)[0].strip() for entry in project["dependencies"]}
    assert list_required(image) <= declared


def test_the_gateway_image_has_no_torch() -> None:
    assert "torch" not in list_required("gateway")
    assert "torch" in list_required("node")


def test_a_copied_path_that_is_missing_is_found() -> None:
    assert list_missing("COPY pyproject.toml nothing-here ./\n") == ["nothing-here"]
    assert list_ignored("COPY docs docs\n", "docs/\n") == ["docs"]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_what_is_locked_and_torch_alone_without_hashes(image: str) -> None:
    text = (ROOT / f"deploy/Dockerfile.{image}").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install (.*?)(?:&&|\n)", text)
    unchecked = [line for line in installs if "--require-hashes" not in line]
    own = "--prefix=/install --no-deps --no-build-isolation ."
    others = [line.split() for line in unchecked if line.strip() != own]
    assert others == [] if image == "gateway" else [line[3] for line in others] == ["torch"]
    assert f"-r {image}.txt" in text
    locked = (ROOT / f"locks/{image}.txt").read_text(encoding="utf-8")
    names = {name.lower() for name in re.findall(r"^([\w.-]+)==", locked, re.MULTILINE)}
    assert list_required(image) - {"torch"} <= names
