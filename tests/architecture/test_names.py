"""A file is named after what is in it (its words: docs/glossary.md)."""

import pytest

from tests.architecture.source_tree import PACKAGES, SUPPORT, Module, module_from_text, modules_of

EMPTY_WORDS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}


def names_nothing(module: Module) -> bool:
    """Whether a part of the module's name says nothing about its content."""
    return bool(EMPTY_WORDS & set(module.name.split(".")))


def test_every_file_is_named_after_its_content() -> None:
    assert [m.path for m in modules_of(*PACKAGES, *SUPPORT) if names_nothing(m)] == []


@pytest.mark.parametrize("word", sorted(EMPTY_WORDS))
def test_a_name_that_says_nothing_is_found(word: str) -> None:
    assert names_nothing(module_from_text(f"gateway.{word}", ""))
    assert names_nothing(module_from_text(f"gateway.{word}.text", ""))
    assert not names_nothing(module_from_text(f"gateway.{word}_of_text", ""))
