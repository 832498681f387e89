# ruff: noqa: INP001
"""Creates the passwords that docker-compose.yml mounts as files; what exists stays.

The folder is closed to others (mode 0700). The files in it are readable (0644), because inside a
container they keep their mode while their reader is another user than here.
"""

import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"


def create_secrets(folder: Path) -> None:
    """Leaves `postgres_password`, `database_url` of the same password, `grafana_password`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    password_file = folder / "postgres_password"
    if not password_file.exists():
        write(password_file, secrets.token_hex(24))
    password = password_file.read_text(encoding="ascii").strip()
    url_file = folder / "database_url"
    if not url_file.exists():
        write(url_file, f"postgresql+asyncpg://hearth:{password}@postgres:5432/hearth")
    grafana_file = folder / "grafana_password"
    if not grafana_file.exists():
        write(grafana_file, secrets.token_hex(12))


def write(file: Path, content: str) -> None:
    """Writes a readable file."""
    file.write_text(content + "\n", encoding="ascii")
    file.chmod(0o644)
    sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    create_secrets(FOLDER)
