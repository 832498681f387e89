"""How a core's process begins: nothing is collected until libraries and weights are there."""

import subprocess
import sys

# Runs an entry point whose core "serves" by saying how it was found.
PROBE = """
import gc, sys
from gpu_pool import engine_core
assert "torch" not in sys.modules, "read before the collector was off"
import gpu_pool.core_runner as core_runner
collected = []
gc.callbacks.append(lambda phase, info: collected.append(phase))
def serve(path, load_model):
    from gpu_pool.garbage import settle_garbage
    assert "torch" in sys.modules and not gc.isenabled()
    print(len(collected))
    settle_garbage()
    assert gc.isenabled() and gc.get_freeze_count()
    return 0
core_runner.run_core = serve
if len(sys.argv) > 1:  # the control: whoever reads with the collector on
    import gpu_pool.core_executor
    print(len(collected))
sys.exit(engine_core.main("nowhere"))
"""


def probe(*options: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_nothing_is_collected_while_libraries_are_read() -> None:
    assert probe() == [0]


def test_with_the_collector_on_it_would_be_many_times() -> None:
    num_collected, *_ = probe("control")
    assert num_collected > 100
