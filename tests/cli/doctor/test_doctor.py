"""`hearth doctor` finds nothing wrong with what is in order, and each thing that is not."""

import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from cli.doctor.command import examine_settings
from cli.doctor.finding import Area, Finding, Findings, Level
from cli.doctor.fleet_checks import check_nodes
from cli.doctor.gateway_checks import check_certificate, check_entries
from cli.doctor.price_checks import check_prices
from cli.doctor.residency_checks import check_regions, check_residency
from cli.doctor.store_checks import check_limits, note_skew
from cli.main import app
from contracts.ids import NodeId, RegionId
from contracts.pricing import TokenRates
from contracts.settings import decode_settings
from gateway.admission.probe import probe_store
from gateway.membership.enrolments import NodeEnrolment, write_enrolment
from gateway.settings import PREFIX, GatewaySettings
from migrations.upgrade import upgrade_database_async
from tenancy.changes import AccountChange
from tenancy.encryption.key_ring import Keys
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tests.fixtures.acting_tenancy import open_tenancy
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.free_port import find_port
from tests.fixtures.node_process import GATEWAY
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.fixtures.redis_server import needs_redis, run_redis

Table = dict[str, Any]


async def create_table(folder: Path, node: DoubleNode) -> Table:
    """The settings of a gateway in order, in front of `node`, with files of its own."""
    database = f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    await upgrade_database_async(database)
    ring = folder / "keys" / "key_ring.json"
    keys = load_or_create_key_ring(ring, secrets.token_bytes)
    await set_price(folder / "hearth.db", keys)
    return {
        "gateway_id": GATEWAY,
        "database": {"url": database},
        "key_ring": {"file": str(ring)},
        "journal": {"folder": str(folder / "journal")},
        "nodes": [
            {
                "node_id": "double-node",
                "region": "local",
                "url": node.address.url.replace("http", "ws", 1),
                "key_file": str(write_pair_key(folder, node.address.pair_key)),
            }
        ],
    }


async def set_price(database: Path, keys: Keys, model: str = "@test/*") -> None:
    """What the node's model costs."""
    tenancy = open_tenancy(database, keys)
    await tenancy.set_price(model, TokenRates(1, 1, 1, 1))
    await tenancy.close()


def write_pair_key(folder: Path, key: bytes) -> Path:
    """A key's file, for its owner alone."""
    file = folder / f"{secrets.token_hex(4)}.key"
    file.touch(mode=0o600)
    file.write_text(key.hex())
    return file


async def examine(table: Table) -> list[Finding]:
    """What the checks find."""
    findings = Findings()
    await examine_settings(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
    return findings.all


def list_bad(findings: list[Finding]) -> list[Finding]:
    """Warnings and problems among them."""
    return [f for f in findings if f.level in (Level.WARNING, Level.PROBLEM)]


def _expose_ring(table: Table) -> None:
    Path(table["key_ring"]["file"]).chmod(0o644)


def _lose_ring(table: Table) -> None:
    Path(table["key_ring"]["file"]).unlink()


def _empty_database(table: Table) -> None:
    table["database"]["url"] += ".other"


def _change_pair_key(table: Table) -> None:
    folder = Path(table["nodes"][0]["key_file"]).parent
    table["nodes"][0]["key_file"] = str(write_pair_key(folder, secrets.token_bytes(32)))


def _expose_pair_key(table: Table) -> None:
    Path(table["nodes"][0]["key_file"]).chmod(0o640)


def _be_somebody_else(table: Table) -> None:
    table["gateway_id"] = "gateway-nobody-knows"


def _lose_node(table: Table) -> None:
    table["nodes"][0]["url"] = f"ws://127.0.0.1:{find_port()}"


def _open_port(table: Table) -> None:
    table["listen"] = {"host": "0.0.0.0"}


def _trust_node(table: Table) -> None:
    del table["nodes"][0]["region"]


def _be_elsewhere(table: Table) -> None:
    table["nodes"][0]["region"] = "enam"


def _have_another_law(table: Table) -> None:
    regions = [{"name": "local", "jurisdiction": "eu", "latency_ms": 0}]
    table["routing"] = {"regions": regions}


def _take_much(table: Table) -> None:
    table["journal"]["max_bytes"] = 2**62


def _want_many(table: Table) -> None:
    table["limits"] = {"max_connections": 2**40}


HARMS: tuple[tuple[Callable[[Table], None], Area, str], ...] = (
    (_expose_ring, Area.KEYS, "key ring cannot be used"),
    (_lose_ring, Area.KEYS, "There is no key ring"),
    (_expose_pair_key, Area.KEYS, "may be read by others"),
    (_empty_database, Area.DATABASE, "not this version's: empty"),
    (_change_pair_key, Area.NODES, "refuses this gateway, or its key (status 401)"),
    (_be_somebody_else, Area.NODES, "refuses this gateway, or its key (status 401)"),
    (_lose_node, Area.NODES, "double-node at ws://127.0.0.1"),
    (_open_port, Area.CONFIGURATION, "`listen` is on 0.0.0.0 without TLS"),
    (_trust_node, Area.CONFIGURATION, "may say itself which region"),
    (_be_elsewhere, Area.NODES, "says it is in local, these settings in enam"),
    (_have_another_law, Area.NODES, "under the law of nobody, these settings under that of eu"),
    (_take_much, Area.DISK, "GB are free"),
    (_want_many, Area.MACHINE, "may open"),
)


async def test_each_fault_is_found_with_what_to_do_and_nothing_without_one(tmp_path: Path) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "checkpoint")
    async with run_double_node(tmp_path, checkpoint) as node:
        findings = await examine(await create_table(tmp_path, node))
        assert list_bad(findings) == []
        assert {finding.area for finding in findings} == set(Area)
        assert any("has proved itself" in finding.what for finding in findings)
        for harm, area, words in HARMS:
            folder = tmp_path / harm.__name__
            folder.mkdir()
            table = await create_table(folder, node)
            harm(table)
            bad = list_bad(await examine(table))
            assert [finding.area for finding in bad] == [area], harm.__name__
            assert words in bad[0].what
            assert bad[0].advice


async def test_who_names_which_law_for_a_region_is_said_where_they_differ(tmp_path: Path) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "checkpoint")
    folder = tmp_path / "members"
    folder.mkdir()

    def enrol(name: str, region: str, law: str) -> None:
        key_file = write_pair_key(folder, secrets.token_bytes(32)).name
        place = NodeEnrolment(region=RegionId(region), jurisdiction=law, key_file=key_file)
        write_enrolment(folder, NodeId(name), place)

    async with run_double_node(tmp_path, checkpoint) as node:
        table = await create_table(tmp_path, node)
        table["membership"] = {"url": "redis://127.0.0.1:1", "folder": str(folder)}

        async def find(**changes: Any) -> list[Finding]:
            findings = Findings()
            settings = decode_settings(GatewaySettings, table | changes, {}, PREFIX)
            await check_nodes(settings, findings)
            return list_bad(findings.all)

        enrol("other", "local", "")
        enrol("far", "enam", "us")
        assert await find() == []  # of one mind
        enrol("third", "local", "eu")
        (named,) = await find()
        assert (named.area, named.level) == (Area.NODES, Level.PROBLEM)
        assert "local (eu by third; none by double-node, other)" in named.what
        regions = [{"name": "local", "jurisdiction": "eu", "latency_ms": 0}]
        (named,) = await find(routing={"regions": regions})
        assert named.what.startswith("double-node says it is under the law of nobody")


async def test_a_model_without_a_price_is_named(tmp_path: Path) -> None:
    ring = load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    database = tmp_path / "hearth.db"
    url = f"sqlite+aiosqlite:///{database}"
    await upgrade_database_async(url)
    settings = decode_settings(GatewaySettings, {"database": {"url": url}}, {}, PREFIX)
    models = {"@test/random-llama", "@other/model"}
    findings = Findings()
    await set_price(database, ring)
    await check_prices(settings, models, findings)
    (unpriced,) = findings.all
    assert unpriced.level is Level.WARNING
    assert unpriced.what.startswith("@other/model has no price")
    await set_price(database, ring, "@other/model")
    findings = Findings()
    await check_prices(settings, models, findings)
    assert [finding.level for finding in findings.all] == [Level.OK]


def test_a_node_in_a_region_that_the_settings_do_not_name_is_named() -> None:
    def find(region: str, *known: str) -> list[Finding]:
        node = {"node_id": "n", "url": "ws://127.0.0.1:1", "key_file": "k", "region": region}
        regions = [{"name": name, "jurisdiction": "eu", "latency_ms": 9} for name in known]
        table = {"region": "own", "nodes": [node], "routing": {"regions": regions}}
        findings = Findings()
        check_regions(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
        return findings.all

    (named,) = find("wuer", "weur")
    assert named.level is Level.WARNING
    assert named.what.startswith("n is in wuer, which")
    assert find("weur", "weur") == find("own", "weur") == find("wuer") == []


def test_entries_and_whether_anybody_is_sent_there_fit_together() -> None:
    entry = {"entry": "https://gateway.example"}

    def find(*regions: dict[str, Any], is_strict: bool) -> list[Finding]:
        named = [{"jurisdiction": "eu", "latency_ms": 1} | region for region in regions]
        table = {"region": "weur", "routing": {"regions": named, "strict_entry": is_strict}}
        findings = Findings()
        check_entries(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
        return findings.all

    home, enam, apac = {"name": "weur"} | entry, {"name": "enam"}, {"name": "apac"}
    for regions in ((), (home,), (home, enam)):
        (named,) = find(*regions, is_strict=True)
        assert (named.level, named.area) == (Level.WARNING, Area.CONFIGURATION)
        assert "no other region of `[[routing.regions]]` names an `entry`" in named.what
        assert "turn `strict_entry` off" in named.advice
        assert find(*regions, is_strict=False) == []
    (named,) = find(home, enam | entry, apac, is_strict=True)
    assert (named.level, "and apac names no `entry`" in named.what) == (Level.NOTE, True)
    (named,) = find(home, enam | entry, apac | entry, is_strict=False)
    assert named.level is Level.NOTE
    assert "an `entry` for enam, apac, and `routing.strict_entry` is off" in named.what
    assert find(home, enam | entry, apac | entry, is_strict=True) == []  # the control


async def test_jurisdictions_of_accounts_in_which_no_region_is_are_named(tmp_path: Path) -> None:
    ring = load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    database = tmp_path / "hearth.db"
    url = f"sqlite+aiosqlite:///{database}"
    await upgrade_database_async(url)
    tenancy = open_tenancy(database, ring)
    bound = await tenancy.create_account("bound", allowed_jurisdictions=("eu", "ue"))
    fond = await tenancy.create_account("fond", preferred_jurisdictions=("su",))
    await tenancy.close()
    node = {"node_id": "n", "url": "ws://127.0.0.1:1", "key_file": "k"}

    async def find(*laws: str, **place: str) -> list[str]:
        names = zip(("weur", "enam", "apac"), laws, strict=False)
        regions = [{"name": name, "jurisdiction": law, "latency_ms": 1} for name, law in names]
        table = {"database": {"url": url}, "nodes": [node | place], "routing": {"regions": regions}}
        return [finding.what for finding in await examine_residency(table)]

    for place in ({}, {"region": "weur"}):  # also where a node may be anywhere
        misspelt, unheard = sorted(await find("eu", "us", **place))
        assert misspelt.startswith(
            f"bound ({bound.account_id}) names the jurisdiction ue, in which"
        )
        assert unheard.startswith(f"fond ({fond.account_id}) names the jurisdiction su, in which")
    assert await find() == []  # nothing is known of laws
    assert await find("ue", "su", "eu") == []  # the control


async def examine_residency(table: dict[str, Any]) -> list[Finding]:
    """What is found of accounts under such settings."""
    findings = Findings()
    await check_residency(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
    return findings.all


async def test_accounts_that_are_bound_to_regions_without_a_node_are_named(tmp_path: Path) -> None:
    ring = load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    database = tmp_path / "hearth.db"
    url = f"sqlite+aiosqlite:///{database}"
    await upgrade_database_async(url)
    tenancy = open_tenancy(database, ring)
    for name, regions in (("anywhere", None), ("spread", ("weur", "apac"))):
        await tenancy.create_account(name, allowed_regions=regions)
    stranded = await tenancy.create_account("misspelt", allowed_regions=("wuer",))
    node = {"node_id": "n", "url": "ws://127.0.0.1:1", "key_file": "k"}

    async def find(**changes: Any) -> list[Finding]:
        table = {"database": {"url": url}, "nodes": [node | changes]}
        return await examine_residency(table)

    (named,) = await find(region="weur")
    assert named.level is Level.WARNING
    assert named.what.startswith(f"misspelt ({stranded.account_id}) is bound to wuer")
    assert len(await find(region="enam")) == 2
    assert await find() == []  # a node may be anywhere: nothing is known
    at_home = AccountChange(allowed_regions=(RegionId("weur"),))
    await tenancy.change_account(stranded.account_id, at_home)
    await tenancy.close()
    assert [finding.level for finding in await find(region="weur")] == [Level.OK]


async def test_accounts_whose_law_holds_where_no_node_is_are_named(tmp_path: Path) -> None:
    ring = load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    database = tmp_path / "hearth.db"
    url = f"sqlite+aiosqlite:///{database}"
    await upgrade_database_async(url)
    tenancy = open_tenancy(database, ring)
    bound = await tenancy.create_account("bound", allowed_jurisdictions=("eu",))
    idle = await tenancy.create_account("idle", preferred_regions=(RegionId("apac"),))
    node = {"node_id": "n", "url": "ws://127.0.0.1:1", "key_file": "k", "region": "weur"}

    async def find(law: str | None) -> list[str]:
        regions = [] if law is None else [{"name": "weur", "jurisdiction": law, "latency_ms": 1}]
        table = {"database": {"url": url}, "nodes": [node], "routing": {"regions": regions}}
        return [finding.what for finding in await examine_residency(table)]

    stranded, unheard = await find("us")
    assert stranded.startswith(f"bound ({bound.account_id}) is bound to the law of eu, where no")
    assert unheard.startswith(f"idle ({idle.account_id}) prefers apac, where it has no node")
    assert [what.split()[0] for what in await find("eu")] == ["idle", "Every"]
    assert [what.split()[0] for what in await find(None)] == ["idle"]  # the node says that itself
    last = AccountChange(preferred_jurisdictions=("eu",))
    await tenancy.change_account(idle.account_id, last)
    assert len(await find("us")) == 2
    assert await find(None) == []
    both = AccountChange(allowed_regions=(RegionId("enam"),))
    await tenancy.change_account(bound.account_id, both)
    none = AccountChange(preferred_regions=(), preferred_jurisdictions=())
    await tenancy.change_account(idle.account_id, none)
    assert len(await find(None)) == 1
    await tenancy.change_account(bound.account_id, AccountChange(allowed_jurisdictions=()))
    assert "the law of nobody" in (await find(None))[0]
    await tenancy.change_account(bound.account_id, AccountChange(allowed_jurisdictions=("eu",)))
    await tenancy.close()
    (named,) = await find("eu")
    assert "is bound to enam under the law of eu, where" in named


@pytest.mark.parametrize(("skew_s", "level"), [(0.9, Level.OK), (-0.9, Level.OK), (1.1, "problem")])
def test_clocks_may_differ_by_a_second(skew_s: float, level: str) -> None:
    findings = Findings()
    note_skew("somebody", skew_s, findings)
    assert findings.worst == level


@needs_redis
async def test_a_shared_store_is_asked_too_and_a_missing_one_is_a_problem(tmp_path: Path) -> None:
    with run_redis(tmp_path) as server:
        probe = await probe_store(server.url, lambda: datetime.now(UTC).timestamp())
        assert abs(probe.skew_s) < 1
    findings = Findings()
    table = {"shared_limits": {"url": f"redis://127.0.0.1:{find_port()}/0"}}
    await check_limits(decode_settings(GatewaySettings, table, {}, PREFIX), findings)
    (finding,) = findings.all
    assert (finding.area, finding.level) == (Area.LIMITS, Level.PROBLEM)


@pytest.mark.parametrize(
    ("days", "level"), [(60, Level.OK), (5, Level.WARNING), (-1, Level.PROBLEM)]
)
def test_certificates_are_read(tmp_path: Path, days: int, level: Level) -> None:
    files = write_certificate(tmp_path, days)
    findings = Findings()
    check_certificate("listen", *files, findings)
    assert findings.worst is level
    findings = Findings()
    check_certificate("listen", files[0], tmp_path / "none.pem", findings)
    assert findings.worst is Level.PROBLEM


def write_certificate(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate that ends in so many days, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days, hours=1))
        .sign(key, hashes.SHA256())
    )
    files = (folder / "certificate.pem", folder / "key.pem")
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_settings_that_cannot_be_read_are_a_finding_and_the_exit_code_is_one(
    tmp_path: Path,
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("[listen]\nprot = 1\n")
    result = CliRunner().invoke(app, ["doctor", "--config", str(config), "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["worst"] == "problem"
    (finding,) = report["findings"]
    assert "prot" in finding["what"]
    assert finding["advice"]


def test_people_read_it_by_area_with_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'[key_ring]\nfile = "{tmp_path}/none.json"\n')
    result = CliRunner().invoke(app, ["doctor", "--config", str(config)])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("PROBLEM  configuration  No node is configured.")
    assert "[[nodes]]" in lines[1]
    assert lines[-1].endswith("in order")


def test_without_a_file_it_looks_at_the_gateway_of_this_folders_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = CliRunner().invoke(app, ["doctor"])  # the control: no `hearth dev` has been here
    assert "No node is configured." in alone.stdout
    (tmp_path / ".hearth").mkdir()
    (tmp_path / ".hearth" / "gateway.toml").write_text("[listen]\nprot = 1\n")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "prot" in result.stdout
