"""Options of every command that asks a running fleet at a gateway's operators' port.

Owns their words and defaults; must not know what is asked. Read next: `cli.operator_client`.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_DIRECTORY: Final = Path(".hearth")

AdminUrlOption = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        help="The operators' port, such as http://127.0.0.1:8788; an operator's token is then "
        "read from HEARTH_OPERATOR_TOKEN.",
    ),
]
DirectoryOption = Annotated[Path, typer.Option("--dir", help="State folder of a `hearth dev`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
