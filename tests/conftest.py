"""What every test shares: hypothesis without deadlines, since machines are shared and slow, and
triton's interpreter where there is no GPU (it must be asked for before a kernel is imported).
Arithmetic is that of an engine core, whose libraries are told before torch is imported, too.
Lines of logs go to standard error, also those of threads that outlive the test that began them.
What is compiled is kept, whatever the environment says: hundreds of processes are started, and each
would compile all of Hearth anew. Threads that wait for each other's part of a product sleep:
several processes share the cores, and one that spins takes from another what it waits for, a third
of all CPU time. And the collector leaves the ten thousand tests alone, which it would look through
every time and which stay to the end."""

import gc
import os
import sys
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from gpu_pool.row_invariance import ROW_INVARIANT_ENVIRON
from telemetry.log_output import configure_command_log

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.update(ROW_INVARIANT_ENVIRON)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"
with suppress(ImportError):  # Linux alone has it; kernels are interpreted where it has been read
    import_module("triton")

settings.register_profile("hearth", deadline=None)
settings.load_profile("hearth")
configure_command_log()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """After it the collector works as in any process, on what is made from then on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
