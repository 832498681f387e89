"""The `hearth` command: its groups, its version and the way failures end.

Owns registration and exit codes (0 done, 1 failed, 2 wrong usage); must not import what a
command needs before that command runs, so that `hearth --help` stays instant.
Read next: `cli.dev.command`, `cli.serve`.
"""

import sys
from typing import Annotated, Final

import typer

from cli import database, keys, models, plan, serve
from cli.client_commands import add_client_commands
from cli.dev import command as dev
from cli.doctor import command as doctor
from cli.tenancy_groups import add_tenancy_groups
from cli.terminal import CommandFailed, print_failure
from contracts.errors import ServiceError
from contracts.settings import SettingsError

EPILOG: Final = """
**Start here**

`hearth dev` starts everything on this machine and prints lines to paste.

`hearth chat` talks to it from a second terminal.

`hearth models add @cf/meta/llama-3.2-1b-instruct --from hub:meta-llama/Llama-3.2-1B-Instruct`
adds a model.

`hearth tokens create ACCOUNT_ID --name ci` issues a credential.

Each command explains itself: `hearth COMMAND --help`.
"""

app = typer.Typer(
    name="hearth",
    help="Hearth: an inference platform on your own GPUs.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("dev")(dev.dev)
add_client_commands(app)
app.add_typer(models.app, name="models")
app.command("plan")(plan.plan)
add_tenancy_groups(app)
serve.add_process_commands(app)
app.command("doctor")(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.add_typer(database.app, name="db")


def read_version() -> str:
    """The installed version, or a word for a checkout that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("hearth")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _print_version(is_wanted: bool) -> None:
    """Answers `--version` before any command is looked at."""
    if is_wanted:
        print(f"hearth {read_version()}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and leave.",
        ),
    ] = False,
) -> None:
    """Holds the options that belong to no command."""


def main() -> None:
    """Runs the command line; an expected failure becomes one sentence and exit code 1."""
    try:
        app(prog_name="hearth")
    except (CommandFailed, ServiceError, SettingsError) as error:
        print_failure(error)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output left, as in `hearth models list | head -1`; nobody is to be told.
        sys.stderr.close()
        sys.exit(1)
