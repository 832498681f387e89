"""`hearth keys`: the files that hold keys, made once, and the key ring's new versions.

Owns the pair key's file; the key ring's belongs to tenancy. Must not print a key.
Read next: `tenancy.encryption.key_ring_file`.
"""

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.tenancy_command import TenancyDesk, tenancy_command
from cli.terminal import CommandFailed
from contracts.pair_key import PAIR_KEY_BYTES
from tenancy.administration import Administration

if TYPE_CHECKING:
    from tenancy.encryption.key_ring import KeyRing

PepperOption = Annotated[
    bool,
    typer.Option("--pepper", help="A new pepper too: credentials issued from then on use it."),
]

app = typer.Typer(
    help="Make and rotate the files that hold keys.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
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


@app.command("stage")
def stage(
    file: Annotated[Path, typer.Argument(help="The key ring.")],
    pepper: PepperOption = False,
) -> None:
    """Add a new version to the key ring without using it yet.

    Copy the file to every machine with a gateway before `hearth keys rotate`; gateways notice
    within two seconds.
    """
    from tenancy.encryption.key_ring_file import load_key_ring, replace_key_ring_file

    staged = _stage(load_key_ring(file), pepper)
    replace_key_ring_file(file, staged, secrets.token_bytes)
    print(f"Version {max(staged.master_keys.keys)} is staged in {file}.")


@tenancy_command(app, "rotate")
def rotate(
    desk: TenancyDesk,
    pepper: PepperOption = False,
    settle_s: Annotated[
        float,
        typer.Option(
            "--settle",
            min=0,
            help="Seconds between staging a version and using it: gateways "
            "that share the file must have seen it.",
        ),
    ] = 5.0,
) -> None:
    """Use the newest master key of the ring, staging one first, and wrap every data key anew.

    What is encrypted stays as it is. Old versions stay in the ring: cache salts and the signed
    heads of the audit log go on depending on them.
    """
    from tenancy.encryption.key_ring import activate_newest
    from tenancy.encryption.key_ring_file import load_key_ring, replace_key_ring_file

    file = desk.place.key_ring
    ring = load_key_ring(file)
    if max(ring.master_keys.keys) == ring.master_keys.current_version:
        ring = _stage(ring, pepper)
        replace_key_ring_file(file, ring, secrets.token_bytes)
        time.sleep(settle_s)
    ring = replace(
        ring,
        master_keys=activate_newest(ring.master_keys),
        peppers=activate_newest(ring.peppers),
    )
    replace_key_ring_file(file, ring, secrets.token_bytes)
    count = desk.run(_rewrap_all)
    version = ring.master_keys.current_version
    desk.report(
        {"version": version, "num_rewrapped": count},
        f"Version {version} is in use; {count} data keys were wrapped anew.",
    )


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


def _stage(ring: "KeyRing", with_pepper: bool) -> "KeyRing":
    """`ring` with a new master key and, if asked for, a new pepper, neither in use."""
    from tenancy.encryption.key_ring import stage_version

    staged = replace(ring, master_keys=stage_version(ring.master_keys, secrets.token_bytes))
    if not with_pepper:
        return staged
    return replace(staged, peppers=stage_version(ring.peppers, secrets.token_bytes))


async def _rewrap_all(tenancy: Administration) -> int:
    """How many data keys were brought under the current version."""
    total = 0
    while count := await tenancy.rewrap_data_keys():
        total += count
    return total


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
