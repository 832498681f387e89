"""Every command that the documents name is there, with the options that they give it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^|[`$( |])hearth ([a-z][a-z-]*(?: [^`#|&;)\n]*)?)", re.MULTILINE)
OPTION = re.compile(r"(?<!\S)--?[a-z][a-z-]*")


def find_phantoms(text: str) -> Iterator[str]:
    """Options in `text` that their commands do not have."""
    for words in COMMAND.findall(text):
        command, path, *rest = typer.main.get_command(app), "hearth", *words.split()
        while rest and (below := getattr(command, "commands", {}).get(rest[0])) is not None:
            command, path = below, f"{path} {rest.pop(0)}"
        known = {option for parameter in command.params for option in parameter.opts}
        for option in OPTION.findall(" ".join(rest)) if path != "hearth" else ():
            if option not in {*known, "--help", "-h"}:
                yield f"{path} {option}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_names_an_option_that_is_not_there(document: Path) -> None:
    assert list(find_phantoms(document.read_text(encoding="utf-8"))) == []


def test_what_is_not_there_is_found() -> None:
    text = (
        "Say `hearth accounts change ID --priority 3 --colour red`.\n\nhearth node drain a --wait"
    )
    assert list(find_phantoms(text)) == ["hearth accounts change --colour"]
