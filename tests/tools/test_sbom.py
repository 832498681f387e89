"""What counts as part of an installation, and that a package without a licence is named."""

import pytest

from tools.sbom import list_needed, print_licences


def test_what_runs_is_needed_and_what_tests_is_not() -> None:
    needed = list_needed("hearth")
    assert {"hearth", "msgspec", "torch", "markupsafe"} <= needed  # the last one by way of jinja2
    assert needed.isdisjoint({"pytest", "ruff", "hypothesis", "transformers"})


def test_a_package_without_a_licence_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    components = [
        {"name": "one", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "two", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {"name": "three"},
    ]
    assert print_licences(components) == ["three"]
    assert capsys.readouterr().out.splitlines() == ["MIT: one", "MIT OR Apache-2.0: two"]
