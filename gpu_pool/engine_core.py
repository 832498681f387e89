"""An engine-core process: one loaded model behind two pipes (entry point).

Read next: `core_runner` (what every such process does), `core_executor` (what computes).
"""

import gc
import sys


def main(argument: str) -> int:
    """The exit code; `argument` is as `find_settings_path` takes it.

    Libraries and weights come to stay, so nobody collects until they are there (`settle_garbage`):
    walking modules while they are read took a quarter of the seconds that a core needs for them.
    What libraries leave behind is less than a megabyte, and to look for it takes a tenth of a
    second, so it stays.
    """
    gc.disable()
    from gpu_pool.core_executor import load_model
    from gpu_pool.core_runner import find_settings_path, run_core

    gc.freeze()
    return run_core(find_settings_path(argument), load_model)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
