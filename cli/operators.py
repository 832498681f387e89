"""`hearth operators`: the people and programs that run the platform.

Owns the commands' words and output; the rules are tenancy's. A value is printed once, when the
operator is created. Read next: `cli.tenancy_command`.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from cli.tenancy_command import TenancyDesk, tenancy_command
from cli.terminal import format_unix_s, print_table
from contracts.ids import OperatorId

app = typer.Typer(
    help="Create, list and delete operators, who run the platform and use the admin port.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "create")
def create(
    desk: TenancyDesk,
    name: Annotated[str, typer.Argument(help="Whose credential it is: 1 to 100 characters.")],
) -> None:
    """Create an operator and print the credential, which cannot be shown again.

    Give one to each person and program, so that each can be told apart.

    Example: `hearth operators create alice`
    """
    issued = desk.run(lambda tenancy: tenancy.create_operator(name), may_create=True)
    value = issued.value.reveal()
    desk.report(
        {**asdict(issued.operator), "value": value},
        f"Created operator {issued.operator.operator_id} ({issued.operator.name}).",
        "The credential, shown only now; keep it like a password:",
        value,
    )


@tenancy_command(app, "list")
def list_all(desk: TenancyDesk) -> None:
    """List all operators, oldest first."""
    operators = desk.run(lambda tenancy: tenancy.list_operators())
    if desk.as_json:
        desk.report(operators)
        return
    print_table(
        ("OPERATOR ID", "NAME", "CREATED"),
        [
            (operator.operator_id, operator.name, format_unix_s(operator.created_unix_s))
            for operator in operators
        ],
    )


@tenancy_command(app, "delete")
def delete(
    desk: TenancyDesk,
    operator_id: Annotated[
        str, typer.Argument(metavar="OPERATOR_ID", help="As `hearth operators list` prints it.")
    ],
) -> None:
    """Void an operator's credential at once; the last operator stays."""
    desk.run(lambda tenancy: tenancy.delete_operator(OperatorId(operator_id)))
    desk.report({"operator_id": operator_id}, f"Deleted operator {operator_id}.")
