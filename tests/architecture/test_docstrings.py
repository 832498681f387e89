"""Every module says what it owns; contracts, the words the others share, say it of each name.

And whoever is sent on by `Read next:` arrives.
"""

import ast
import re
from collections.abc import Collection, Iterator

import pytest

from tests.architecture.source_tree import (
    PACKAGES,
    ROOT,
    SUPPORT,
    Module,
    module_from_text,
    modules_of,
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
POINTER = re.compile(r"`([a-z_][a-z0-9_.]*)`")


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


def dead_ends(module: Module, known: Collection[str]) -> list[str]:
    """What `Read next:` names and is neither one of the modules `known` nor a file beside it."""
    _, _, pointers = (ast.get_docstring(module.tree) or "").partition("Read next:")
    parts = module.name.split(".")
    homes = ["", *(".".join(parts[:length]) + "." for length in range(1, len(parts) + 1))]
    return [
        f"{module.path}:1 `{name}` is not there"
        for name in POINTER.findall(pointers)
        if not any(home + name in known for home in homes)
        and not (ROOT / module.path).parent.joinpath(name).exists()
    ]


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


def test_what_is_to_be_read_next_exists() -> None:
    modules = modules_of(*PACKAGES, *SUPPORT)
    known = {module.name for module in modules}
    findings = [f for module in modules for f in dead_ends(module, known)]
    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(
    ("name", "num_found"), [("gateway.app", 0), ("app", 0), ("apps", 1), ("tests.app", 1)]
)
def test_a_pointer_to_nothing_is_found(name: str, num_found: int) -> None:
    module = module_from_text("gateway.x", f'"""Xs.\n\nRead next: `{name}`.\n"""')
    assert len(dead_ends(module, {"gateway.app"})) == num_found
