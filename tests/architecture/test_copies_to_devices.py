"""Steps hand numbers to a GPU from pinned memory: other copies wait for all that runs there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP_CODE = ("attention", "runner", "sampling")
# Masks of the form that only CPUs read.
ALLOWED = {"gpu_pool/attention/batch.py"}


def list_waiting_copies(source: str) -> Iterator[int]:
    """Lines that make a tensor of host numbers on a device, or move one there, and wait."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called = ast.unparse(node.func)
        names = [ast.unparse(argument) for argument in node.args]
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in ("torch.tensor", "torch.as_tensor"):
            waits = "device" in given
        elif node.func.attr == "to":
            names.append(given.get("device", ""))
            waits = any("device" in name for name in names) and "non_blocking" not in given
        else:
            waits = node.func.attr == "cuda"
        if waits:
            yield node.lineno


def test_steps_hand_nothing_over_that_waits() -> None:
    files = [path for part in STEP_CODE for path in (ROOT / "gpu_pool" / part).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if str(path.relative_to(ROOT)) not in ALLOWED
        for line in list_waiting_copies(path.read_text())
    }
    assert len(files) > 20
    assert not found, "these wait for the device; use `gpu_pool.kernels.device_values`"


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("torch.tensor(ids, device=device)", True),
        ("torch.from_numpy(ids).to(self.blocks.device)", True),
        ("mask.to(device=device, dtype=dtype)", True),
        ("ids.cuda()", True),
        ("torch.tensor(ids)", False),
        ("torch.zeros(3, device=device)", False),
        ("ids.to(device, non_blocking=True)", False),
        ("logits.to(torch.float32)", False),
    ],
)
def test_the_check_knows_what_waits(source: str, is_found: bool) -> None:
    assert any(list_waiting_copies(source)) is is_found
