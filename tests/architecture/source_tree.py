"""Hearth's source read as data: modules, what each imports, and where in the module it does so.

Owns parsing only; the rules are in the tests beside it. Modules can also be made from text, which
is how each rule is shown to fail on code that breaks it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("contracts", "telemetry", "gateway", "tenancy", "gpu_pool", "hot_standby", "migrations"),
    "cli",
)
SUPPORT = ("benchmarks", "tools", "tests")
OWN = frozenset((*PACKAGES, *SUPPORT))


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` is `module="a.b"`, `name="c"`."""

    module: str
    name: str | None
    line: int
    is_inside_function: bool

    @property
    def top(self) -> str:
        """The first part of the module's name."""
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """One Python file."""

    name: str
    path: str  # relative to the repository root
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.source, self.path)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, those of functions and of TYPE_CHECKING blocks included."""
        return tuple(self._imports(self.tree, is_inside_function=False))

    @property
    def package(self) -> str:
        """The first part of the module's name."""
        return self.name.partition(".")[0]

    @property
    def is_package(self) -> bool:
        """Whether this is an `__init__.py`."""
        return self.path.endswith("__init__.py")

    def is_in(self, homes: Iterable[str]) -> bool:
        """Whether the module is one of these, or lies inside one."""
        return any(self.name == home or self.name.startswith(f"{home}.") for home in homes)

    def _imports(self, node: ast.AST, is_inside_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, None, child.lineno, is_inside_function)
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    yield Import(
                        self._absolute(child), alias.name, child.lineno, is_inside_function
                    )
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._imports(child, is_inside_function or is_function)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*base, node.module] if node.module else base)


def module_from_text(name: str, source: str) -> Module:
    """A module that exists in a test only."""
    return Module(name, name.replace(".", "/") + ".py", source)


def modules_of(*packages: str) -> tuple[Module, ...]:
    """The modules under these top-level folders, in order of their paths."""
    return tuple(m for m in all_modules() if m.path.split("/")[0] in packages)


@lru_cache(maxsize=1)
def all_modules() -> tuple[Module, ...]:
    """Every Python file of the repository that is ours."""
    files = (path for top in sorted(OWN) for path in sorted((ROOT / top).rglob("*.py")))
    return tuple(_read(path) for path in files if "__pycache__" not in path.parts)


def _read(path: Path) -> Module:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, str(relative), path.read_text(encoding="utf-8"))


def import_graph(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Which of these modules each of them imports itself, by name."""
    known = {module.name: module for module in modules}
    return {
        name: {t for i in module.imports if (t := _target(i, known)) and t != name}
        for name, module in known.items()
    }


def _target(imported: Import, known: Mapping[str, Module]) -> str | None:
    submodule = f"{imported.module}.{imported.name}"
    if imported.name and submodule in known:
        return submodule
    return imported.module if imported.module in known else None


def reachable(graph: Mapping[str, set[str]], starts: Iterable[str]) -> set[str]:
    """Every module that is loaded when these are, the packages around each included."""
    found: set[str] = set()
    pending = list(starts)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        pending.extend(graph.get(name, ()))
        if (parent := name.rpartition(".")[0]) in graph:
            pending.append(parent)
    return found


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one import cycle in order, the first again at the end; empty without one."""
    finished: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        branches = [iter([start])]
        while branches:
            name = next(branches[-1], None)
            if name is None:
                branches.pop()
                if path:
                    finished.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in finished:
                path.append(name)
                branches.append(iter(sorted(graph[name])))
    return []


def dotted_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Every plain or dotted name that is used below a node (`os.environ`), with its line."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name | ast.Attribute) and (name := dotted_name(child)):
            yield name, child.lineno


def dotted_name(node: ast.AST) -> str:
    """The text of `a.b.c`; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute) if base := dotted_name(value):
            return f"{base}.{attribute}"
        case _:
            return ""
