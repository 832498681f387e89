"""The groups of commands on tenancy, in the order in which `hearth --help` lists them.

Must not know any command. Read next: `cli.tenancy_command`.
"""

import typer

from cli import accounts, audit, backup, limits, operators, prices, tokens, usage


def add_tenancy_groups(app: typer.Typer) -> None:
    """Registers every group in `app`."""
    app.add_typer(accounts.app, name="accounts")
    app.add_typer(tokens.app, name="tokens")
    app.add_typer(limits.app, name="limits")
    app.add_typer(prices.app, name="prices")
    app.add_typer(operators.app, name="operators")
    app.add_typer(usage.app, name="usage")
    app.add_typer(audit.app, name="audit")
    app.add_typer(backup.app, name="backup")
