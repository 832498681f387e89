"""`hearth doctor`: runs every check of a gateway's installation and says what came of it.

Owns the order of checks, the output and the exit code. Read next: `gateway_checks`.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.doctor.finding import Area, Findings, Level
from cli.process_settings import find_dev_settings, read_settings
from cli.terminal import CommandFailed, print_json
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

_SIGNS: Final = {
    Level.OK: "ok     ",
    Level.NOTE: "note   ",
    Level.WARNING: "WARNING",
    Level.PROBLEM: "PROBLEM",
}


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The gateway's TOML file. Without it: that of the `hearth dev` of this folder.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Look at a gateway's installation, explain each finding and what to do.

    Checks configuration, keys and who can read them, database and its tables, limits, nodes over
    the wire, accounts that no node may serve, clocks, disk, limits of the machine and the collector
    of traces. Changes nothing. Run it where the gateway runs, as its user. Exits with 1 if
    something does not work, else with 0, warnings or not.

    Examples: `hearth doctor` beside a `hearth dev`, `hearth doctor --config gateway.toml --json`
    """
    findings = examine(config or find_dev_settings())
    if as_json:
        print_json({"worst": findings.worst, "findings": findings.all})
    else:
        print_findings(findings)
    if findings.worst is Level.PROBLEM:
        raise typer.Exit(1)


def examine(config: Path | None) -> Findings:
    """Everything that was found."""
    from gateway.settings import PREFIX, GatewaySettings

    findings = Findings()
    try:
        settings = read_settings(GatewaySettings, config, PREFIX, os.environ)
    except (SettingsError, CommandFailed) as error:
        advice = "Correct the file or the environment; options are listed in gateway/settings.py."
        findings.add(Area.CONFIGURATION, Level.PROBLEM, str(error), advice)
        return findings
    asyncio.run(examine_settings(settings, findings))
    return findings


def print_findings(findings: Findings) -> None:
    """All of them by area, what to do below each."""
    for area in Area:
        for finding in findings.all:
            if finding.area is area:
                print(f"{_SIGNS[finding.level]}  {area:<13}  {finding.what}")
                if finding.advice:
                    print(f"{'':24}{finding.advice}")
    counts = {level: sum(f.level is level for f in findings.all) for level in Level}
    print(
        f"{_count(counts[Level.PROBLEM], 'problem')}, {_count(counts[Level.WARNING], 'warning')}, "
        f"{_count(counts[Level.NOTE], 'note')}, {counts[Level.OK]} in order"
    )


def _count(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def examine_settings(settings: "GatewaySettings", findings: Findings) -> None:
    """Runs every check, those that wait for others last."""
    from cli.doctor.fleet_checks import check_nodes
    from cli.doctor.gateway_checks import (
        check_descriptors,
        check_entries,
        check_keys,
        check_settings,
    )
    from cli.doctor.membership_checks import check_membership
    from cli.doctor.price_checks import check_prices
    from cli.doctor.residency_checks import check_regions, check_residency
    from cli.doctor.store_checks import check_database, check_disk, check_limits
    from cli.doctor.trace_checks import check_traces

    check_settings(settings, findings)
    check_entries(settings, findings)
    check_keys(settings, findings)
    check_disk(settings, findings)
    check_descriptors(settings, findings)
    await check_database(settings, findings)
    await check_limits(settings, findings)
    models = await check_nodes(settings, findings)
    await check_prices(settings, models, findings)
    check_regions(settings, findings)
    await check_residency(settings, findings)
    await check_membership(settings, findings)
    await check_traces(settings, findings)
