# ruff: noqa: INP001
"""Creates the passwords that docker-compose.yml mounts as files; what exists stays.

The folder is closed to others (mode 0700). The files in it are readable (0644), because inside a
container they keep their mode while their reader is another user than here.
"""

import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"
VALKEY_USERS = """\
user default on nopass resetkeys resetchannels -@all +ping
user gateway on >{password} ~{{hearth:limits}}:* resetchannels +@all -@admin -@dangerous"""
"""Anybody may ask whether Valkey answers; gateways may count."""


def create_secrets(folder: Path) -> None:
    """Leaves a file for each store's password, one with it for whoever asks the store, Grafana's
    password, and what hot standby and gateway know each other by.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    password = ensure(folder / "postgres_password", secrets.token_hex(24))
    ensure(folder / "database_url", f"postgresql+asyncpg://hearth:{password}@postgres:5432/hearth")
    url = ensure(folder / "valkey_url", f"redis://gateway:{secrets.token_hex(24)}@valkey:6379/0")
    password = url.removeprefix("redis://gateway:").partition("@")[0]
    ensure(folder / "valkey_users", VALKEY_USERS.format(password=password))
    ensure(folder / "standby_credential", secrets.token_hex(32))
    ensure(folder / "grafana_password", secrets.token_hex(12))


def ensure(file: Path, content: str) -> str:
    """What the file says, which is `content` unless it was there before."""
    if not file.exists():
        write(file, content)
    return file.read_text(encoding="ascii").strip()


def write(file: Path, content: str) -> None:
    """Writes a readable file; whoever is interrupted leaves none that is cut short."""
    begun = file.with_name(f".{file.name}.begun")
    begun.write_text(content + "\n", encoding="ascii")
    begun.chmod(0o644)
    begun.replace(file)
    sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    create_secrets(FOLDER)
