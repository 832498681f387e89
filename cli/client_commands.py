"""The commands that ask a gateway as any client of an account does.

Must not know what they ask. Read next: `cli.chat`, `cli.finetunes`.
"""

import typer

from cli import chat, finetunes


def add_client_commands(app: typer.Typer) -> None:
    """Registers each in `app`."""
    app.command("chat")(chat.chat)
    app.add_typer(finetunes.app, name="finetunes")
