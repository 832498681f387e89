"""No input is ever executed: no pickle, torch.load, eval or exec."""

import ast

import pytest

from tests.architecture.source_tree import (
    PACKAGES,
    SUPPORT,
    Module,
    dotted_name,
    module_from_text,
    modules_of,
)

MODULES = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CALLS = {"eval", "exec", "compile", "builtins.eval", "builtins.exec", "torch.load"}
NAMES = {("torch", "load"), ("builtins", "eval"), ("builtins", "exec")}
OPTIONS = {"allow_pickle", "trust_remote_code"}


def executions(module: Module) -> list[str]:
    """Where the module could run what it reads."""
    found = [
        f"{module.path}:{i.line} imports {i.module}"
        for i in module.imports
        if i.top in MODULES or (i.module, i.name) in NAMES
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            if (name := dotted_name(node.func)) in CALLS:
                found.append(f"{module.path}:{node.lineno} calls {name}")
            found += [
                f"{module.path}:{node.lineno} passes {keyword.arg}"
                for keyword in node.keywords
                if keyword.arg in OPTIONS and not is_false(keyword.value)
            ]
    return found


def is_false(node: ast.expr) -> bool:
    """Whether an argument is the literal False."""
    return isinstance(node, ast.Constant) and node.value is False


def test_nothing_we_read_is_executed() -> None:
    findings = [f for m in modules_of(*PACKAGES, *SUPPORT) for f in executions(m)]
    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from marshal import loads",
        "import torch as t\nfrom torch import load",
        "x = torch.load('weights.pt')",
        "eval('1')",
        "exec(text)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
    ],
)
def test_code_that_executes_its_input_is_found(source: str) -> None:
    assert len(executions(module_from_text("gpu_pool.weights.x", source))) == 1


@pytest.mark.parametrize(
    "source", ["model.eval()", "re.compile('a')", "np.load(p, allow_pickle=False)"]
)
def test_names_that_only_look_alike_are_left_alone(source: str) -> None:
    assert executions(module_from_text("gpu_pool.weights.x", source)) == []
