"""`hearth audit`: reading the log of changes, and checking that nobody has touched it.

Owns the commands' words and output. Read next: `tenancy.audit.verification`.
"""

from typing import Annotated, Final

import typer

from cli.tenancy_command import TenancyDesk, tenancy_command
from cli.terminal import CommandFailed, format_unix_s, print_table
from contracts.ids import AccountId
from tenancy.administration import Administration
from tenancy.audit.entries import AuditEntry, AuditFilter

MAX_SHOWN_FINDINGS: Final = 50

app = typer.Typer(
    help="Read the log of changes, and check that it is as it was written.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@tenancy_command(app, "list")
def list_all(
    desk: TenancyDesk,
    account: Annotated[
        str | None, typer.Option("--account", help="Changes of this account only.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 50,
) -> None:
    """List the newest changes, the newest first."""
    wanted = AuditFilter(account_id=None if account is None else AccountId(account))

    async def read(tenancy: Administration) -> list[AuditEntry]:
        return await tenancy.list_audit_entries(wanted, limit=limit)

    entries = desk.run(read)
    if desk.as_json:
        desk.report(entries)
        return
    print_table(
        ("SEQUENCE", "TIME", "ACTION", "RESOURCE", "ACTOR", "ADDRESS"),
        [
            (
                str(entry.sequence),
                format_unix_s(entry.occurred_unix_us // 1_000_000),
                entry.action,
                entry.resource_id,
                f"{entry.actor.kind} {entry.actor.actor_id}",
                entry.actor.address or "-",
            )
            for entry in entries
        ],
    )


@tenancy_command(app, "verify")
def verify(desk: TenancyDesk) -> None:
    """Check every entry against its hash and the signed heads; fails when one does not fit.

    Run it from a machine that whoever could change the database cannot reach.
    """
    verdict = desk.verify_audit_log()
    if desk.as_json:
        desk.report(verdict)
    for finding in verdict.findings[:MAX_SHOWN_FINDINGS]:
        print(f"{finding.number}: {finding.fault}")
    if verdict.findings:
        raise CommandFailed(
            f"The audit log is not as it was written: {len(verdict.findings)} findings in "
            f"{verdict.num_entries} entries."
        )
    if not desk.as_json:
        print(
            f"{verdict.num_entries} entries are as they were written; "
            f"heads are signed up to {verdict.last_signed}."
        )
