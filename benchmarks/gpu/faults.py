"""Checks that go on after one has failed, so that a run on a machine tells of all that is wrong.

Must not know what is checked. Read next: `kernels`.
"""

import traceback
from collections.abc import Generator
from contextlib import contextmanager


class Faults:
    """What has failed so far."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.found: list[str] = []

    @contextmanager
    def gathered(self, name: str) -> Generator[None]:
        """An error inside is kept under that name, and the run goes on."""
        try:
            yield
        except AssertionError as error:
            self.found.append(f"{name}: {error}")
        except Exception:
            self.found.append(f"{name}: {traceback.format_exc()}")

    def conclude(self) -> None:
        """Raises: `AssertionError` that tells of every fault, if there is one."""
        if self.found:
            raise AssertionError("\n".join((f"{len(self.found)} faults", *self.found)))
