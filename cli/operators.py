"""`hearth operators`: the people and programs that run the platform.

Owns the commands' words and output; the rules are tenancy's. A value is printed once, when the
operator is created. Read next: `cli.tenancy_access`.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from cli.tenancy_access import (
    ConfigOption,
    DatabaseUrlOption,
    JsonOption,
    KeyRingOption,
    find_place,
    format_unix_s,
    print_table,
    run_with_tenancy,
)
from cli.terminal import print_json

app = typer.Typer(
    help="Create and list operators, who run the platform and use the admin port.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose credential it is: 1 to 100 characters.")],
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an operator and print the credential, which cannot be shown again.

    Give one to each person and program, so that each can be told apart.

    Example: `hearth operators create alice`
    """
    place = find_place(config, database_url, key_ring)
    issued = run_with_tenancy(place, lambda tenancy: tenancy.create_operator(name), may_create=True)
    value = issued.value.reveal()
    if as_json:
        print_json({**asdict(issued.operator), "value": value})
        return
    print(f"Created operator {issued.operator.operator_id} ({issued.operator.name}).")
    print("The credential, shown only now; keep it like a password:")
    print(value)


@app.command("list")
def list_all(
    config: ConfigOption = None,
    database_url: DatabaseUrlOption = None,
    key_ring: KeyRingOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all operators, oldest first."""
    operators = run_with_tenancy(
        find_place(config, database_url, key_ring), lambda tenancy: tenancy.list_operators()
    )
    if as_json:
        print_json(operators)
        return
    print_table(
        ("OPERATOR ID", "NAME", "CREATED"),
        [
            (operator.operator_id, operator.name, format_unix_s(operator.created_unix_s))
            for operator in operators
        ],
    )
