"""A process that fetches the weights of a folder, to be killed in the middle of it."""

import asyncio
import sys
from pathlib import Path

from gpu_pool.server.remote.fetched_weights import find_weights


def main() -> None:
    files = find_weights(Path(sys.argv[1]), None)
    asyncio.run(files.fetch())
    assert files.are_here


if __name__ == "__main__":
    main()
