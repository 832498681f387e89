"""`hearth usage`: exports that anybody can verify, on a real SQLite file."""

import asyncio
import json
import secrets
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import accounts
from cli.terminal import CommandFailed
from cli.usage import app
from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId
from contracts.usage import MS_PER_DAY
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring_file import load_key_ring
from tests.cli.tenancy_commands import TenancyCommands
from tests.tenancy.test_contract_usage import START_MS, record

NUM_RECORDS = 1003


@pytest.fixture
def commands(tmp_path: Path) -> TenancyCommands:
    """The usage commands, on a ledger of two accounts."""
    made = TenancyCommands(app, tmp_path)
    made.write("create", "one", app=accounts.app)
    asyncio.run(fill(made))
    return made


async def fill(made: TenancyCommands) -> None:
    """More than a page on the first day, one request on the second, one of another account."""
    ring = load_key_ring(made.key_ring)
    tenancy = create_tenancy(made.database_url, ring, time.time, secrets.token_bytes)
    records = [record(number) for number in range(NUM_RECORDS - 1)]
    records += [record(1, START_MS + MS_PER_DAY), record(2, START_MS + 2 * MS_PER_DAY)]
    records.append(record(5000, account_id=AccountId("b" * 32)))
    await tenancy.append_usage(records, "tests")
    while await tenancy.roll_up_usage():
        pass
    await tenancy.close()


def export(commands: TenancyCommands, folder: Path) -> Path:
    """Two days of the first account."""
    path = folder / "export.jsonl"
    commands.write(
        *("export", "a" * 32, "--since", "2023-11-14", "--before", "2023-11-16"),
        *("--output", str(path)),
    )
    return path


def test_an_export_has_every_record_of_the_account_and_verifies(
    commands: TenancyCommands, tmp_path: Path
) -> None:
    path = export(commands, tmp_path)
    lines = path.read_bytes().splitlines()
    assert len(lines) == NUM_RECORDS + 2
    first = json.loads(lines[1])
    assert (first["request_id"], first["cost_nano"]) == (record(0).request_id, 7)
    assert (first["num_uncached"], first["num_reasoning"], first["outcome"]) == (1, 4, "complete")
    assert {json.loads(line)["account_id"] for line in lines[1:-1]} == {"a" * 32}
    key = commands.write("public-key").strip()
    result = CliRunner().invoke(app, ["verify", str(path), "--public-key", key])
    assert result.exit_code == 0, result.output
    assert f"{NUM_RECORDS} records of account {'a' * 32} from 2023-11-14" in result.stdout
    with pytest.raises(AssertionError):  # it is not written over
        export(commands, tmp_path)


@pytest.mark.parametrize("harm", ["change", "drop", "add", "swap", "cut", "key", "empty"])
def test_whatever_was_changed_shows(commands: TenancyCommands, tmp_path: Path, harm: str) -> None:
    path = export(commands, tmp_path)
    key = commands.write("public-key").strip()
    lines = path.read_bytes().splitlines(keepends=True)
    match harm:
        case "change":
            lines[5] = lines[5].replace(b'"cost_nano":7', b'"cost_nano":6')
        case "drop":
            del lines[5]
        case "add":
            lines.insert(5, lines[5])
        case "swap":
            lines[5], lines[6] = lines[6], lines[5]
        case "cut":
            del lines[-1]
        case "empty":
            lines.clear()
        case _:
            key = secrets.token_hex(32)
    path.write_bytes(b"".join(lines))
    result = CliRunner().invoke(app, ["verify", str(path), "--public-key", key])
    assert isinstance(result.exception, CommandFailed)


def test_an_account_that_is_not_there_gets_no_signed_bill(
    commands: TenancyCommands, tmp_path: Path
) -> None:
    file = tmp_path / "nobody.jsonl"
    days = ("--since", "2027-01-01", "--before", "2027-02-01")
    result = commands.run("export", "c" * 32, *days, "-o", str(file))
    assert isinstance(result.exception, NotFound)
    assert not file.exists()


WINDOW = ("--since", "2023-11-14", "--before", "2023-11-16")


def test_usage_is_summed_up_by_day_hour_and_model(commands: TenancyCommands) -> None:
    days = commands.read("show", "a" * 32, *WINDOW)
    assert [(line["name"], line["num_requests"]) for line in days] == [
        ("2023-11-14", NUM_RECORDS - 1),
        ("2023-11-15", 1),
        ("all", NUM_RECORDS),
    ]
    assert days[-1] == {
        "name": "all",
        "num_requests": NUM_RECORDS,
        "num_prompt_tokens": 3 * NUM_RECORDS,
        "num_cached_tokens": 2 * NUM_RECORDS,
        "num_output_tokens": 7 * NUM_RECORDS,
        "cost_nano": 7 * NUM_RECORDS,
        "cost": "0.000007021",
        "num_microneurons": 5 * NUM_RECORDS,
    }
    hours = commands.read("show", "a" * 32, "--by", "hour", *WINDOW)
    assert [line["name"] for line in hours] == [*("2023-11-14 00:00Z", "2023-11-15 00:00Z", "all")]
    models = commands.read("show", "a" * 32, "--by", "model", *WINDOW)
    assert [(line["name"], line["num_requests"]) for line in models] == [
        ("@hearth/tiny-chat", NUM_RECORDS),
        ("all", NUM_RECORDS),
    ]


def test_old_months_leave_the_books_and_the_sums_stay(
    commands: TenancyCommands, tmp_path: Path
) -> None:
    asked = commands.run("drop", "--before", "2023-12-01")  # nobody answers
    assert asked.exit_code != 0
    assert "Every request before 2023-12-01" in asked.stderr
    assert json.loads(export(commands, tmp_path).read_bytes().splitlines()[-1])["num_records"] > 0
    (tmp_path / "export.jsonl").unlink()
    kept = commands.read("drop", "--before", "2023-12-24", "--yes")
    assert kept == {"kept_since": "2023-12-01"}
    nothing = commands.run("export", "a" * 32, *WINDOW, "-o", str(tmp_path / "empty.jsonl"))
    assert isinstance(nothing.exception, NotFound)  # no record is left, and no such account
    assert commands.read("show", "a" * 32, *WINDOW)[-1]["num_requests"] == NUM_RECORDS
    future = commands.run("drop", "--before", "2999-01-01", "--yes")
    assert isinstance(future.exception, InvalidRequest)


def test_usage_reads_as_a_table(commands: TenancyCommands) -> None:
    table = commands.write("show", "a" * 32, *WINDOW).splitlines()
    assert table[0].split() == [
        *("DAY", "REQUESTS", "PROMPT", "CACHED", "OUTPUT", "COST", "NEURONS")
    ]
    assert table[-1].split() == ["all", "1003", "3009", "2006", "7021", "0.000007021", "0.005"]
    idle = commands.read("list", app=accounts.app)[0]["account_id"]
    (whole,) = commands.read("show", idle)  # the last 30 days
    assert (whole["num_requests"], whole["cost"]) == (0, "0")


def test_usage_of_nobody_or_of_no_time_is_refused(commands: TenancyCommands) -> None:
    assert isinstance(commands.run("show", "f" * 32).exception, NotFound)
    backwards = commands.run("show", "a" * 32, "--since", "2023-11-16", "--before", "2023-11-14")
    assert backwards.exit_code == 2
