"""How large things may get. There is no allowlist: what is too big is taken apart."""

import ast
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.architecture.source_tree import (
    PACKAGES,
    SUPPORT,
    Module,
    import_graph,
    module_from_text,
    modules_of,
)

MAX_FILE_LINES = 500
MAX_KERNEL_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_CONSTRUCTOR_PARAMETERS = 7
MAX_OWN_IMPORTS = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function and method, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def long_files(module: Module) -> list[str]:
    """Files over the limit."""
    limit = MAX_KERNEL_FILE_LINES if module.is_in(["gpu_pool.kernels"]) else MAX_FILE_LINES
    lines = len(module.source.splitlines())
    return [f"{module.path} has {lines} lines, {limit} are the end"] if lines > limit else []


def long_functions(module: Module) -> list[str]:
    """Functions over the limit, counted from `def` to the last line."""
    return [
        f"{module.path}:{f.lineno} {f.name} has {lines} lines"
        for f in functions(module.tree)
        if (lines := (f.end_lineno or f.lineno) - f.lineno + 1) > MAX_FUNCTION_LINES
    ]


def wide_constructors(module: Module) -> list[str]:
    """Constructors with too many parameters; fields of dataclasses and Structs do not count."""
    return [
        f"{module.path}:{f.lineno} takes {count} parameters"
        for f in functions(module.tree)
        if f.name == "__init__" and (count := parameters(f) - 1) > MAX_CONSTRUCTOR_PARAMETERS
    ]


def parameters(function: Function) -> int:
    """How many parameters a function has, `self` and starred ones included."""
    a = function.args
    return len([*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))])


def many_own_imports(modules: Iterable[Module]) -> list[str]:
    """Modules that need more than a dozen others of ours."""
    graph = import_graph(modules)
    counts = ((name, len(imported)) for name, imported in sorted(graph.items()))
    return [f"{name} imports {count} modules" for name, count in counts if count > MAX_OWN_IMPORTS]


CONSTRUCTOR = "class A:\n    def __init__(self, a, b, c, d, e, *, f, g{more}):\n        pass\n"
LIMITS: list[tuple[Callable[[Module], list[str]], str, str, str]] = [
    (long_files, "gateway.x", "#\n" * 500, "#\n" * 501),
    (long_files, "gpu_pool.kernels.x", "#\n" * 600, "#\n" * 601),
    (long_functions, "gateway.x", "def f():\n" + "    a\n" * 79, "def f():\n" + "    a\n" * 80),
    (
        wide_constructors,
        "gateway.x",
        CONSTRUCTOR.format(more=""),
        CONSTRUCTOR.format(more=", h"),
    ),
]


@pytest.mark.parametrize("limit", [long_files, long_functions, wide_constructors])
def test_everything_of_ours_is_small_enough(limit: Callable[[Module], list[str]]) -> None:
    findings = [finding for m in modules_of(*PACKAGES, *SUPPORT) for finding in limit(m)]
    assert not findings, "\n".join(["", *findings])


def test_no_module_needs_more_than_a_dozen_others() -> None:
    findings = many_own_imports(modules_of(*PACKAGES))
    assert not findings, "\n".join(["", *findings])


def test_a_module_that_needs_thirteen_others_is_found() -> None:
    others = [module_from_text(f"contracts.m{n}", "") for n in range(13)]
    names = [f"m{n}" for n in range(13)]
    twelve = module_from_text("gateway.x", f"from contracts import {', '.join(names[:12])}, a, b")
    thirteen = module_from_text("gateway.x", f"from contracts import {', '.join(names)}")
    assert many_own_imports([*others, twelve]) == []
    assert many_own_imports([*others, thirteen]) == ["gateway.x imports 13 modules"]


@pytest.mark.parametrize(("limit", "name", "largest", "too_large"), LIMITS)
def test_the_limit_lies_where_it_says(
    limit: Callable[[Module], list[str]], name: str, largest: str, too_large: str
) -> None:
    assert limit(module_from_text(name, largest)) == []
    assert len(limit(module_from_text(name, too_large))) == 1
