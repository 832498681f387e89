"""What the proof says while it runs, and how it runs commands: quietly, unless one fails.

Owns the form of progress lines. Must not know what is proved. Read next: `__main__`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class ProofError(Exception):
    """Something did not hold, or could not be tried; the message says what and why."""


class CannotRunError(ProofError):
    """This machine cannot run the proof; nothing has been found out about Hearth."""


_STARTED = time.monotonic()


def say(message: str) -> None:
    """Prints one line with the seconds since the start."""
    sys.stdout.write(f"[compose-proof {time.monotonic() - _STARTED:5.0f} s] {message}\n")
    sys.stdout.flush()


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what is being done, and afterwards how long it took."""
    say(f"{what} ...")
    begun = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - begun:.1f} s")


def claim(holds: bool, what: str, otherwise: object = "") -> None:
    """Says that something holds. Raises: `ProofError` if it does not."""
    if not holds:
        raise ProofError(f"does not hold: {what}. {otherwise}".rstrip())
    say(f"  ok  {what}")


def run_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str | None = None,
    timeout_s: float = 900,
) -> str:
    """The standard output of a command that succeeded.

    `environ` is added to this process's own. Raises: `ProofError` with the end of what it printed.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environ or {})},
            cwd=folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProofError(f"there is no command `{command[0]}`") from error
    except subprocess.TimeoutExpired as error:
        raise ProofError(f"`{' '.join(command)}` took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        printed = (done.stdout + done.stderr)[-6000:]
        raise ProofError(f"`{' '.join(command)}` ended with {done.returncode}:\n{printed}")
    return done.stdout
