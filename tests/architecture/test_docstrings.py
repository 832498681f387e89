"""Every module says what it owns; contracts, the words the others share, say it of each name."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source_tree import PACKAGES, SUPPORT, Module, module_from_text, modules_of

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(module: Module) -> list[str]:
    """The module without a docstring, and in contracts its public names without one."""
    found = [] if ast.get_docstring(module.tree) else [f"{module.path}:1 has no docstring"]
    if module.package == "contracts":
        found += [
            f"{module.path}:{d.lineno} {d.name} has no docstring"
            for d in public_definitions(module.tree)
            if not ast.get_docstring(d)
        ]
    return found


def public_definitions(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public classes and functions, and the public methods of those classes."""
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


def test_every_module_says_what_it_owns() -> None:
    findings = [f for m in modules_of(*PACKAGES, *SUPPORT) for f in undocumented(m)]
    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gateway.x", "x = 1"),
        ("gateway.x", ""),
        ("contracts.x", '"""Ids."""\nclass A: ...'),
        ("contracts.x", '"""Ids."""\ndef f(): ...'),
        ("contracts.x", '"""Ids."""\nclass A:\n    """An id."""\n    def f(self): ...'),
    ],
)
def test_a_missing_docstring_is_found(name: str, source: str) -> None:
    assert len(undocumented(module_from_text(name, source))) == 1


def test_private_names_need_no_docstring() -> None:
    assert undocumented(module_from_text("contracts.x", '"""Ids."""\ndef _f(): ...')) == []
