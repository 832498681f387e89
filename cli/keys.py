"""`hearth keys`: the files that hold keys, made once and never replaced.

Owns the pair key's file; the key ring's belongs to tenancy. Must not print a key.
Read next: `tenancy.encryption.key_ring_file`.
"""

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import CommandFailed
from contracts.pair_key import PAIR_KEY_BYTES

app = typer.Typer(
    help="Make the files that hold keys.", no_args_is_help=True, rich_markup_mode="markdown"
)


@app.command("create-ring")
def create_ring(file: Annotated[Path, typer.Argument(help="The new key ring.")]) -> None:
    """Create a key ring: the peppers and master keys of one installation.

    Keep a copy in a safe place: without it, no credential in the database is valid any more.

    Example: `hearth keys create-ring /etc/hearth/key_ring.json`
    """
    from tenancy.encryption.key_ring_file import create_key_ring_file

    create_key_ring_file(file, secrets.token_bytes)
    print(file)


@app.command("create-pair")
def create_pair(file: Annotated[Path, typer.Argument(help="The new pair key.")]) -> None:
    """Create the key that one gateway and one node share; put a copy on each of the two.

    Example: `hearth keys create-pair gateway-a--gpu-7.key`
    """
    if file.exists():
        raise CommandFailed(f"{file} exists already; keys are never replaced in place.")
    ensure_pair_key(file)
    print(file)


@app.command("ensure")
def ensure(
    ring: Annotated[Path | None, typer.Option("--ring", help="Key ring to have.")] = None,
    pair: Annotated[list[Path] | None, typer.Option("--pair", help="Pair key to have.")] = None,
) -> None:
    """Create those of the named files that are missing and leave the others alone.

    Made for the first step of a deployment, which runs at every start.

    Example: `hearth keys ensure --ring key_ring.json --pair weur.key --pair enam.key`
    """
    from tenancy.encryption.key_ring_file import load_or_create_key_ring

    if ring is not None:
        load_or_create_key_ring(ring, secrets.token_bytes)
        print(ring)
    for file in pair or ():
        ensure_pair_key(file)
        print(file)


def ensure_pair_key(file: Path) -> None:
    """Leaves `file` with 64 hexadecimal digits that only its owner can read (mode 0600).

    Raises: `CommandFailed` when it cannot be written.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.exists():
            return
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as content:
            content.write(secrets.token_hex(PAIR_KEY_BYTES) + "\n")
            content.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, file)  # unlike a rename, a link refuses to replace
        except FileExistsError:
            pass  # another process was faster; its key is as good
        finally:
            draft.unlink()
    except OSError as error:
        raise CommandFailed(f"Cannot write {file}: {error.strerror}.") from error
