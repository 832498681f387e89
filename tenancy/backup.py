"""Copies of the whole database: one moment of it in one file, and back into an empty one.

SQLite by its own online backup, PostgreSQL by its own pg_dump and pg_restore, which must be
installed. Owns how; what else belongs to a backup is `cli.backup`'s. Read next: `tenancy.db`.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from contracts.errors import StoreUnavailable
from tenancy.db import is_sqlite, parse_database_url

SQLITE_NAME: Final = "hearth.db"
POSTGRES_NAME: Final = "hearth.dump"


def dump_database(database_url: str, folder: Path, environ: Mapping[str, str]) -> Path:
    """A copy of the database in `folder`, as it is at one moment; who uses it goes on.

    `environ` is what PostgreSQL's programs are started with.

    Raises: `SettingsError` (URL), `StoreUnavailable`, which says why.
    """
    url = parse_database_url(database_url)
    if is_sqlite(url):
        target = create_private(folder / SQLITE_NAME)
        _copy_sqlite(Path(str(url.database)), target)
        return target
    target = create_private(folder / POSTGRES_NAME)
    _run_tool(url, environ, "pg_dump", "--format=custom", "--no-owner", f"--file={target}")
    return target


def load_database(database_url: str, folder: Path, environ: Mapping[str, str]) -> None:
    """Fills an empty database with the copy in `folder`; the caller knows that it is empty.

    Raises: `SettingsError` (URL), `StoreUnavailable`, which says why.
    """
    url = parse_database_url(database_url)
    name = SQLITE_NAME if is_sqlite(url) else POSTGRES_NAME
    source = folder / name
    if not source.exists():
        raise StoreUnavailable(f"{folder} has no {name}: it is of another kind of database.")
    if is_sqlite(url):
        target = Path(str(url.database))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.touch(mode=0o600)
        _copy_sqlite(source, target)
    else:
        options = ("--exit-on-error", "--single-transaction", "--no-owner")
        _run_tool(url, environ, "pg_restore", *options, str(source))


def create_private(file: Path) -> Path:
    """`file`, new and its owner's alone. Raises: `StoreUnavailable` when it exists."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be made: {error.strerror}.") from error
    return file


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copies every page, those that wait in the write-ahead log included."""
    if not source.exists():
        raise StoreUnavailable(f"There is no database at {source}.")
    try:
        with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
            read.backup(written)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The database {source} cannot be copied: {error}.") from error


def _run_tool(url: URL, environ: Mapping[str, str], tool: str, *options: str) -> None:
    """Runs one of PostgreSQL's programs; the password goes by environment, where nobody looks."""
    program = shutil.which(tool)
    if program is None:
        raise StoreUnavailable(
            f"`{tool}` is not installed here (Debian: postgresql-client). Run it where the "
            "database is; the guide has the commands."
        )
    named = {
        "PGHOST": url.host,
        "PGPORT": None if url.port is None else str(url.port),
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
        "PGSSLMODE": _find_ssl_mode(url),
    }
    complete = {**environ, **{name: str(value) for name, value in named.items() if value}}
    database = () if tool == "pg_dump" else (f"--dbname={url.database}",)
    command = [program, "--no-password", *database, *options]
    done = subprocess.run(command, env=complete, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StoreUnavailable(f"{tool} failed: {done.stderr.strip()[-1000:]}")


def _find_ssl_mode(url: URL) -> str | None:
    """How the connection is to be protected, where the URL says so."""
    mode = url.query.get("ssl")
    return mode if isinstance(mode, str) else None
