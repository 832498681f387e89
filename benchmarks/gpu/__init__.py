"""Everything that needs an NVIDIA GPU, in one script: `python -m benchmarks.gpu`.

Sections are independent processes with a time limit each, so that one that fails or hangs takes
nothing else along; their JSON files make a run resumable. Read next: `sections`, `__main__`.
"""
