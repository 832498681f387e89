"""The wheel of torch for CPUs, found by this machine's pip and handed to builds over HTTP.

PyTorch's own index is not reachable from everywhere, and pip's local settings do not reach into a
build. Serves one folder as a package index, on the engine's bridge alone.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from sys import executable

from tools.compose_proof.narration import run_command, step

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PORT = 8399  # always the same: the address is part of what a build is cached by


def fetch_torch(root: Path, cache: Path) -> Path:
    """A folder with `torch/`, which holds the wheel of the version that is pinned."""
    pinned = re.findall(r"^torch==\S+$", (root / "constraints.txt").read_text(), re.MULTILINE)[0]
    folder = cache / "wheels" / pinned
    if not list(folder.glob("torch/*.whl")):
        with step(f"fetching {pinned} for CPUs"):
            pip = [executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:"]
            pip += ["--python-version", "3.11", "--implementation", "cp", "--retries", "0"]
            pip += ["--platform", "manylinux_2_28_x86_64", "--extra-index-url", PYTORCH_CPU_INDEX]
            run_command([*pip, "--dest", str(folder / "torch"), pinned])
    return folder


@contextmanager
def serve_index(folder: Path, address: str) -> Iterator[str]:
    """The URL of a package index over `folder`, until the block ends."""
    handler = partial(_QuietHandler, directory=str(folder))
    with ThreadingHTTPServer((address, PORT), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{PORT}"
        finally:
            server.shutdown()
            thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    """Folders as pages of links, which is what pip reads."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
