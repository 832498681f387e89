"""Checks of what a gateway keeps its state in: database, Valkey, the disk of the journal.

Reads only; what is written to measure the disk is removed. Read next: `fleet_checks`.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.doctor.finding import Area, Findings, Level
from contracts.errors import StoreUnavailable
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings

MAX_SKEW_S: Final = 1.0
"""Deadlines and grants are checked against the clock of whoever receives them."""
SLOW_QUERY_S: Final = 0.02
SLOW_SYNC_S: Final = 0.02
_SYNCS: Final = 15
_PAGE: Final = b"\0" * 4096


async def check_database(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether it answers, has this version's tables and tells the same time."""
    from migrations.upgrade import SchemaState, read_schema_state
    from tenancy.probe import probe_database

    area, url = Area.DATABASE, settings.database.url
    advice = "Check `database.url`, whether the server runs, and that this machine may connect."
    failures = (SettingsError, StoreUnavailable)
    with findings.expecting(area, "The database cannot be used", advice, *failures):
        state = await read_schema_state(url)
        if state is not SchemaState.CURRENT:
            _note_schema(state, state is SchemaState.UNKNOWN, findings)
            return
        findings.ok(area, "The database has this version's tables.")
        probe = await probe_database(url, time.time)
        if probe is None:
            if settings.shared_limits is not None:
                findings.add(
                    area,
                    Level.WARNING,
                    "Several gateways share limits, but the database is a file of this machine.",
                    "Use PostgreSQL for more than one gateway.",
                )
            return
        note_skew("the database", probe.skew_s, findings)
        is_slow = probe.took_s > SLOW_QUERY_S
        findings.add(
            area,
            Level.WARNING if is_slow else Level.OK,
            f"A query takes {probe.took_s * 1000:.1f} ms.",
            "Put the database nearer: new credentials and budgets wait for it." if is_slow else "",
        )


async def check_limits(settings: "GatewaySettings", findings: Findings) -> None:
    """Where limits are counted, and whether that answers in time."""
    from gateway.admission.probe import probe_store

    area, shared = Area.LIMITS, settings.shared_limits
    if shared is None:
        findings.add(
            area,
            Level.NOTE,
            "Limits are counted in this process: it must be the only gateway on its database.",
            "Set `shared_limits.url` to a Valkey or Redis before you start a second one.",
        )
        return
    advice = "Check `shared_limits.url`; until then limits hold as `…_without_store` says."
    with findings.expecting(area, "Valkey or Redis cannot be used", advice, StoreUnavailable):
        probe = await probe_store(shared.url.reveal(), time.time)
        note_skew("Valkey or Redis", probe.skew_s, findings)
        is_slow = probe.took_s > shared.budget_s / 2
        findings.add(
            area,
            Level.WARNING if is_slow else Level.OK,
            f"A call to Valkey or Redis takes {probe.took_s * 1000:.1f} ms of the "
            f"{shared.budget_s * 1000:.0f} ms that it may.",
            "Put it nearer, or raise `shared_limits.budget_s`." if is_slow else "",
        )


def check_disk(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether the journal's disk has room and is quick enough to be waited for."""
    area, journal = Area.DISK, settings.journal
    folder = find_existing(journal.folder)
    advice = f"Let the gateway's user write to {journal.folder}."
    with findings.expecting(area, f"Nothing can be written to {folder}", advice, OSError):
        sync_s = measure_sync_s(folder)
        slow = journal.fsync and sync_s > SLOW_SYNC_S
        findings.add(
            area,
            Level.WARNING if slow else Level.OK,
            f"The journal's disk takes {sync_s * 1000:.1f} ms to keep a page for good.",
            "`journal.fsync` makes every answer wait for that: use a quicker disk." if slow else "",
        )
    free = shutil.disk_usage(folder).free
    short = free < journal.max_bytes
    findings.add(
        area,
        Level.WARNING if short else Level.OK,
        f"{free / 1e9:.1f} GB are free where the journal is.",
        f"It may take `journal.max_bytes` ({journal.max_bytes / 1e9:.1f} GB) while the database is "
        "away: make room, or lower the setting."
        if short
        else "",
    )


def measure_sync_s(folder: Path) -> float:
    """How long the disk takes to keep a page, the median of a few. Raises: `OSError`."""
    samples: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began_s = time.monotonic()
            file.write(_PAGE)
            file.flush()
            os.fsync(file.fileno())
            samples.append(time.monotonic() - began_s)
    return statistics.median(samples)


def find_existing(folder: Path) -> Path:
    """`folder`, or the nearest one above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _note_schema(state: str, is_newer: bool, findings: Findings) -> None:
    """Takes note of tables that are another version's."""
    findings.add(
        Area.DATABASE,
        Level.PROBLEM,
        f"The database's tables are not this version's: {state}.",
        "Install the newer version of Hearth that wrote it, or restore a backup."
        if is_newer
        else "Run `hearth db upgrade` with the same settings; see the guide on upgrades.",
    )


def note_skew(who: str, skew_s: float, findings: Findings) -> None:
    """Takes note of how far somebody's clock is from ours."""
    if abs(skew_s) <= MAX_SKEW_S:
        findings.ok(Area.CLOCKS, f"The clock of {who} and ours agree within {MAX_SKEW_S:.0f} s.")
        return
    ahead = "ahead of" if skew_s > 0 else "behind"
    findings.add(
        Area.CLOCKS,
        Level.PROBLEM,
        f"The clock of {who} is {abs(skew_s):.1f} s {ahead} ours.",
        "Run NTP on both machines: deadlines, token times and budgets' days rest on clocks.",
    )
