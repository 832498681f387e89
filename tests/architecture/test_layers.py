"""The layers of docs/structure.md, as far as import-linter (pyproject.toml) cannot say them."""

import ast
import sys
import tomllib
from collections.abc import Callable, Iterable

import pytest

from tests.architecture.source_tree import (
    OWN,
    PACKAGES,
    ROOT,
    SUPPORT,
    Module,
    dotted_names,
    find_cycle,
    import_graph,
    module_from_text,
    modules_of,
    reachable,
)

# Who may import what we did not write. A library not named here is free.
EXTERNAL_HOMES = {
    "torch": {"gpu_pool", *SUPPORT},
    "triton": {"gpu_pool", *SUPPORT},
    "sqlalchemy": {"tenancy", "migrations", *SUPPORT},
    "alembic": {"tenancy", "migrations", "cli", *SUPPORT},
    "starlette": {"gateway", "hot_standby.server", *SUPPORT},
    "aiohttp": {"gateway.upstream", "gpu_pool.server", *SUPPORT},
    "opentelemetry": {"telemetry.otlp", *SUPPORT},
}
# The commands that start the processes read the environment once and hand settings down; a node
# hands its own on to the engine cores it starts.
ENVIRONMENT_READERS = {
    "cli",
    "gpu_pool.node",
    "migrations.env",
    *SUPPORT,
}
# Besides these, a registry of optional back ends may be named here. Entry points of processes say
# when the rest is read: after the collector is off, after another process is on its way.
LOCAL_IMPORTERS = {"cli", "gpu_pool.engine_core", "gpu_pool.node", *SUPPORT}
# What would give contracts I/O, a clock, chance or an environment.
IMPURE_MODULES = {
    *("asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "random"),
    *("secrets", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile"),
    *("threading", "time", "urllib.request"),
}
IMPURE_NAMES = {
    *("open", "print", "input", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("datetime.datetime.now", "datetime.date.today", "uuid.uuid1", "uuid.uuid4", "uuid4", "uuid7"),
}
IMPURE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink"}
CONTROL_COLUMN = ("gpu_pool.engine", "gpu_pool.kv", "gpu_pool.structured", "gpu_pool.plan")
TENSOR_COLUMN = tuple(
    f"gpu_pool.{name}"
    for name in (
        *("worker", "runner", "speculative", "lora", "weights", "models", "layers"),
        *("attention", "sampling", "parallel", "kernels"),
    )
)
NODE_PROCESS = tuple(
    f"gpu_pool.{name}"
    for name in (
        "node",
        "server",
        "core_runner",
        "settings",
        "core_settings",
        "model_settings",
        "connection_settings",
        "room_settings",
        "transfer_settings",
        "transfer",
        "model_store",
        "cpu_share",
        "encoder_architectures",
    )
)
WITHOUT_TORCH = (
    *("contracts", "telemetry", "gateway", "tenancy", "hot_standby", "migrations"),
    *CONTROL_COLUMN,
    *NODE_PROCESS,
)

# What of tenancy the gateway's parts may know: words, values and protocols, all without any I/O.
TENANCY_INTERFACES = {
    "tenancy.interfaces",
    "tenancy.actors",
    "tenancy.administration",
    "tenancy.audit.entries",
    "tenancy.audit.verdict",
    "tenancy.batches.interface",
    "tenancy.changes",
    "tenancy.finetunes.interface",
    "tenancy.payloads.interface",
    "tenancy.permissions",
    "tenancy.policies",
}

Finding = str
Rule = Callable[[Module], list[Finding]]


def foreign_imports(module: Module) -> list[Finding]:
    """Imports of a library outside its home."""
    return [
        f"{module.path}:{i.line} imports {i.top}"
        for i in module.imports
        if i.top in EXTERNAL_HOMES and not module.is_in(EXTERNAL_HOMES[i.top])
    ]


def local_imports(module: Module) -> list[Finding]:
    """Imports of our own code inside a function."""
    return [
        f"{module.path}:{i.line} imports {i.module} inside a function"
        for i in module.imports
        if i.is_inside_function and i.top in OWN and not module.is_in(LOCAL_IMPORTERS)
    ]


def upward_imports(module: Module) -> list[Finding]:
    """Imports of cli, or of folders that nothing imports."""
    if module.package in {"cli", *SUPPORT}:
        return []
    return [
        f"{module.path}:{i.line} imports {i.module}"
        for i in module.imports
        if i.top in {"cli", *SUPPORT}
    ]


def tenancy_internals(module: Module) -> list[Finding]:
    """Imports of tenancy's services by the gateway outside app.py."""
    if module.package != "gateway" or module.name == "gateway.app":
        return []
    return [
        f"{module.path}:{i.line} imports {i.module}"
        for i in module.imports
        if i.top == "tenancy" and not {i.module, f"{i.module}.{i.name}"} & TENANCY_INTERFACES
    ]


def environment_reads(module: Module) -> list[Finding]:
    """Uses of the environment outside composition roots."""
    if module.is_in(ENVIRONMENT_READERS):
        return []
    names = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    found = [
        f"{module.path}:{line} reads {n}" for n, line in dotted_names(module.tree) if n in names
    ]
    imported = [i for i in module.imports if f"{i.module}.{i.name}" in names]
    return found + [f"{module.path}:{i.line} imports {i.name}" for i in imported]


def impurities_of_contracts(module: Module) -> list[Finding]:
    """Whatever in contracts is not standard library or msgspec, or does something."""
    if module.package != "contracts":
        return []
    allowed = {"contracts", "msgspec", *sys.stdlib_module_names}
    imported = [
        f"{module.path}:{i.line} imports {i.module}"
        for i in module.imports
        if i.top not in allowed or {i.top, i.module} & IMPURE_MODULES
    ]
    names = [
        f"{module.path}:{line} uses {name}"
        for name, line in dotted_names(module.tree)
        if name in IMPURE_NAMES
    ]
    methods = [
        f"{module.path}:{node.lineno} uses {node.attr}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_METHODS
    ]
    return imported + names + methods


def torch_importers(modules: Iterable[Module], starts: tuple[str, ...]) -> list[Finding]:
    """Modules that import torch and are loaded when these packages are."""
    by_name = {module.name: module for module in modules}
    loaded = reachable(
        import_graph(by_name.values()), [n for n, m in by_name.items() if m.is_in(starts)]
    )
    return sorted(
        f"{by_name[name].path}:{i.line}"
        for name in loaded
        for i in by_name[name].imports
        if i.top in {"torch", "triton"}
    )


def column_crossings(modules: Iterable[Module]) -> list[Finding]:
    """Imports, however long the way, between the two columns of gpu_pool."""
    by_name = {module.name: module for module in modules}
    graph = import_graph(by_name.values())
    sides = (CONTROL_COLUMN[:-1], TENSOR_COLUMN), (TENSOR_COLUMN, CONTROL_COLUMN[:-1])
    return sorted(
        f"{name} loads {other}"
        for near, far in sides
        for name, module in by_name.items()
        if module.is_in(near)
        for other in reachable(graph, [name])
        if by_name[other].is_in(far)
    )


RULES: list[tuple[Rule, str, str]] = [
    (foreign_imports, "gateway.api.x", "import torch"),
    (foreign_imports, "gpu_pool.engine.x", "from sqlalchemy.orm import Session"),
    (foreign_imports, "gateway.api.x", "def f():\n    import aiohttp"),
    (foreign_imports, "tenancy.x", "from starlette.requests import Request"),
    (local_imports, "gateway.api.x", "def f():\n    from gateway import errors"),
    (local_imports, "gpu_pool.x", "class A:\n    async def f(self):\n        import contracts"),
    (upward_imports, "gateway.x", "from cli.main import main"),
    (upward_imports, "gpu_pool.x", "import tests.conftest"),
    (tenancy_internals, "gateway.auth.x", "from tenancy.db import Database"),
    (tenancy_internals, "gateway.auth.x", "from tenancy import directory"),
    (environment_reads, "gateway.auth.x", "import os\nx = os.environ['A']"),
    (environment_reads, "gpu_pool.engine.x", "from os import getenv"),
    (impurities_of_contracts, "contracts.x", "import numpy"),
    (impurities_of_contracts, "contracts.x", "import time"),
    (impurities_of_contracts, "contracts.x", "x = open('a')"),
    (impurities_of_contracts, "contracts.x", "def f(p):\n    return Path(p).read_text()"),
    (impurities_of_contracts, "contracts.x", "from datetime import datetime\nx = datetime.now()"),
]


@pytest.mark.parametrize("rule", dict.fromkeys(r for r, _, _ in RULES), ids=lambda r: r.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    findings = [finding for module in modules_of(*PACKAGES, *SUPPORT) for finding in rule(module)]
    assert not findings, "\n".join(["", rule.__doc__ or "", *findings])


@pytest.mark.parametrize(("rule", "name", "source"), RULES)
def test_a_module_that_breaks_the_rule_is_found(rule: Rule, name: str, source: str) -> None:
    assert len(rule(module_from_text(name, source))) == 1


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_cycle(import_graph(modules_of(*PACKAGES))) == []


def test_a_circle_of_imports_is_found_at_any_depth() -> None:
    circle = [
        module_from_text("gateway.a", "import gateway.b"),
        module_from_text("gateway.b", "from gateway import c, d"),
        module_from_text("gateway.c", "import typing"),
        module_from_text("gateway.d", "if TYPE_CHECKING:\n    from gateway.a import A"),
    ]
    assert find_cycle(import_graph(circle)) == ["gateway.a", "gateway.b", "gateway.d", "gateway.a"]
    assert find_cycle(import_graph(circle[:3])) == []


def test_gateway_tenancy_node_process_and_control_column_never_load_torch() -> None:
    assert torch_importers(modules_of(*PACKAGES), WITHOUT_TORCH) == []


def test_torch_behind_two_imports_is_found() -> None:
    modules = [
        module_from_text("gpu_pool.engine.a", "from gpu_pool.shapes import size"),
        module_from_text("gpu_pool.shapes", "import gpu_pool.deep.b"),
        module_from_text("gpu_pool.deep.b", "import math"),
        module_from_text("gpu_pool.deep", "import torch"),  # loaded with the module inside it
    ]
    assert torch_importers(modules, WITHOUT_TORCH) == ["gpu_pool/deep.py:1"]


def test_the_columns_of_the_pool_meet_only_at_the_plan() -> None:
    assert column_crossings(modules_of("gpu_pool")) == []


def test_a_crossing_between_the_columns_is_found() -> None:
    modules = [
        module_from_text("gpu_pool.engine.a", "import gpu_pool.between"),
        module_from_text("gpu_pool.between", "import gpu_pool.layers"),
        module_from_text("gpu_pool.layers", "import gpu_pool.plan"),
        module_from_text("gpu_pool.plan", ""),
    ]
    assert column_crossings(modules) == ["gpu_pool.engine.a loads gpu_pool.layers"]


def test_import_linter_and_the_wheel_know_every_package() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        tool = tomllib.load(file)["tool"]
    existing = {p.parent.name for p in ROOT.glob("*/__init__.py")} - set(SUPPORT)
    assert set(tool["importlinter"]["root_packages"]) == existing
    assert existing <= set(PACKAGES)
    include = tool["setuptools"]["packages"]["find"]["include"]
    assert set(include) == {f"{p}{suffix}" for p in PACKAGES for suffix in ("", ".*")}
