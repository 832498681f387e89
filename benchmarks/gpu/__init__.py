"""Everything that needs an NVIDIA GPU, in one script: `python -m benchmarks.gpu`.

Sections are independent processes with a time limit each, so that one that fails or hangs takes
nothing else along; their JSON files make a run resumable. Read next: `sections`, `__main__`.
"""

import os
from contextlib import suppress
from importlib import import_module

if "TRITON_INTERPRET" in os.environ:
    with suppress(ImportError):  # Linux alone has it
        import_module("triton")  # kernels are interpreted where it has been read before them
