"""Entry point: the packages first, then the script, which needs them. Read next: `script`."""

import sys

from benchmarks.gpu.wheels import install_wheels

if __name__ == "__main__":
    install_wheels()
    from benchmarks.gpu.script import main

    sys.exit(main())
