"""Starts of small models whose packed copy is kept, for tests of loading and of writing it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.weights.packed_file import COPY_FILE
from gpu_pool.weights.packed_writing import MappedCopy, PackedWriting
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import PlanDriver

PROMPT = [1 + i % 200 for i in range(40)]


STARTED: list[PlanDriver] = []
"""By the test that runs."""


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    """A copy that nobody has waited for is not written into the next test."""
    yield
    while STARTED:
        STARTED.pop().executor.close()


def start(folder: Path, **changes: Any) -> PlanDriver:
    """A model in bf16 whose copy is kept, however small it is."""
    fields: dict[str, Any] = {
        "model_dir": folder,
        "dtype": DtypeChoice.BFLOAT16,
        "num_threads": 1,
        "num_blocks": 80,
        "packed_copy_bytes": 0,
    }
    STARTED.append(PlanDriver(create_executor(WorkerSettings(**(fields | changes)))))
    return STARTED[-1]


def find_copy(driver: PlanDriver) -> Any:
    executor: Any = driver.executor
    return executor._memory._copy


def is_mapped(driver: PlanDriver) -> bool:
    copy = find_copy(driver)
    return isinstance(copy, MappedCopy) and copy.span.num_bytes > 0


def leave_copy(folder: Path, **changes: Any) -> list[int]:
    """What the model says at a first start, whose copy is there afterwards."""
    driver = start(folder, **changes)
    writing = find_copy(driver)
    assert isinstance(writing, PackedWriting)
    writing.wait()
    assert (folder / COPY_FILE).is_file()
    return ask(driver)


def ask(driver: PlanDriver) -> list[int]:
    return driver.generate([driver.add(PROMPT)], 6)[0]


def say_anew(folder: Path) -> list[int]:
    """What the model says without any copy."""
    return ask(start(folder, packed_copy_bytes=None))
