"""What `docs/proofs/` names is there: tests, benchmarks, documents, and each area in the index."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

PROOFS = sorted((ROOT / "docs/proofs").glob("*.md"))
INDEX = ROOT / "docs/proofs.md"


def find_missing(text: str, directory: Path) -> list[str]:
    """What commands and links in `text`, a document in `directory`, name and is not there."""
    missing = [path for path in list_test_paths(text) if not (ROOT / path).exists()]
    missing += [name for name in list_benchmarks(text) if not has_module(name)]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    return missing + [link for link in links if not (directory / link).exists()]


def list_test_paths(text: str) -> Iterator[str]:
    """The files and folders that `make test ARGS=...` and its like are given."""
    given = r"make (?:test|test-slow|gpu) ARGS=(?:([\"'])(?P<quoted>.*?)\1|(?P<plain>[^\s`]+))"
    for found in re.finditer(given, text):
        words = shlex.split(found["quoted"] or found["plain"])
        yield from (word.partition("::")[0] for word in words if word.startswith("tests/"))


def list_benchmarks(text: str) -> list[str]:
    """The modules that `make bench WHAT=...` and `python -m` are given."""
    named = [f"benchmarks.{what}" for what in re.findall(r"make bench WHAT=([\w.]+)", text)]
    return named + re.findall(r"python -m ((?:benchmarks|tools)[\w.]*)", text)


def has_module(name: str) -> bool:
    """Whether the repository has a module or package of that name."""
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


@pytest.mark.parametrize("path", PROOFS, ids=lambda path: path.stem)
def test_all_that_a_proof_names_is_there(path: Path) -> None:
    text = path.read_text()
    assert find_missing(text, path.parent) == []
    assert f"(proofs/{path.name})" in INDEX.read_text()


def test_the_index_leads_to_what_is_there() -> None:
    assert find_missing(INDEX.read_text(), INDEX.parent) == []


@pytest.mark.parametrize(
    "planted",
    [
        "`make test ARGS=tests/gateway/test_of_nothing.py`",
        "`make test ARGS='tests/gateway tests/of/nothing -k stream'`",
        '`make test-slow ARGS="tests/of_nothing.py"`',
        "`make bench WHAT=engine.bench_nothing ARGS=--record`",
        "`python -m benchmarks.nothing --only wake`",
        "[why](adr/0000-nothing.md)",
    ],
)
def test_what_is_not_there_is_found(planted: str) -> None:
    assert find_missing(planted, INDEX.parent)


def test_what_is_there_is_not_taken_for_missing() -> None:
    text = "`make test ARGS='tests/gateway -k stream'`, `make bench WHAT=routing ARGS='--nodes 8'`"
    assert find_missing(f"{text}, [index](proofs.md#not-kept)", INDEX.parent) == []
