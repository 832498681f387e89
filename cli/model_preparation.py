"""Makes a model that was added ready for its first start on this machine's CPU.

Owns the words; what is packed, and whether anything is, is the pool's affair.
Read next: `gpu_pool.worker.preparation`.
"""

import sys
import time
from pathlib import Path

from cli.terminal import show_progress


def prepare_model(folder: Path) -> None:
    """Leaves the weights beside the checkpoint as a CPU computes with them, where that is needed.

    What hinders it is said and harms nothing: the model's first start does it then.
    """
    from gpu_pool.cpu_share import count_own_threads
    from gpu_pool.load_progress import LoadProgress
    from gpu_pool.models.errors import CheckpointError
    from gpu_pool.worker.preparation import Prepared, prepare_copy
    from telemetry.log_output import configure_command_log

    configure_command_log()
    try:
        with show_progress("Preparing") as progress:
            told = LoadProgress(progress, time.monotonic, every_s=0.1)
            prepared = prepare_copy(folder, told, count_own_threads())
            told.finish()
    except (CheckpointError, OSError, MemoryError, RuntimeError) as error:  # the last is torch's
        print(f"The model was not prepared for a CPU: {error}", file=sys.stderr)
        return
    except KeyboardInterrupt:
        print("Added, but not prepared for a CPU: the first start packs.", file=sys.stderr)
        raise
    if prepared is Prepared.NO_MEMORY:
        print("Not prepared for a CPU: the weights do not fit in memory here.", file=sys.stderr)
    if prepared is Prepared.NOT_TAKEN:
        print(
            "Not prepared for a CPU: the drive or the model's folder takes no copy. A line above"
            " says why.",
            file=sys.stderr,
        )
