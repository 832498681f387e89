"""The gateway's options: their names are a promise, their mistakes are named."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from cli.process_settings import read_settings
from contracts.settings import SettingsError, decode_settings, list_option_names
from gateway.settings import PREFIX, GatewaySettings

OPTIONS = (
    "admin.host",
    "admin.port",
    "admin.tls.certificate_file",
    "admin.tls.key_file",
    "audit.heads_file",
    "auth.epoch_poll_s",
    "auth.max_cached_principals",
    "auth.max_cached_rejections",
    "auth.max_failures_per_address_per_min",
    "auth.max_staleness_s",
    "auth.rejection_ttl_s",
    "batches.kept_s",
    "batches.lease_s",
    "batches.max_batches_per_account",
    "batches.max_bytes_per_account",
    "batches.max_items",
    "batches.max_running",
    "batches.patience_s",
    "batches.poll_s",
    "cross_origin[].account_id",
    "cross_origin[].origins",
    "database.url",
    "finetunes.idle_timeout_s",
    "finetunes.max_bytes",
    "finetunes.max_cached",
    "finetunes.max_per_account",
    "finetunes.max_rank",
    "finetunes.max_uploads",
    "finetunes.max_uploads_per_account",
    "finetunes.piece_timeout_s",
    "finetunes.sweep_s",
    "gateway_id",
    "idempotency.max_bytes",
    "idempotency.max_bytes_per_account",
    "idempotency.max_keys_per_account",
    "idempotency.ttl_s",
    "journal.flush_s",
    "journal.folder",
    "journal.fsync",
    "journal.max_bytes",
    "key_ring.file",
    "limits.body_timeout_s",
    "limits.header_timeout_s",
    "limits.keep_alive_s",
    "limits.max_body_bytes",
    "limits.max_body_bytes_in_all",
    "limits.max_concurrent_requests",
    "limits.max_connections",
    "limits.max_header_bytes",
    "limits.ping_after_s",
    "limits.queue_deadline_s",
    "limits.request_deadline_s",
    "limits.shutdown_grace_s",
    "limits.shutdown_notice_s",
    "limits.slow_reader_timeout_s",
    "listen.host",
    "listen.port",
    "listen.tls.certificate_file",
    "listen.tls.key_file",
    "log.format",
    "log.level",
    "membership.budget_s",
    "membership.folder",
    "membership.gone_after_s",
    "membership.max_skew_s",
    "membership.poll_s",
    "membership.url",
    "metrics.host",
    "metrics.port",
    "metrics.tls.certificate_file",
    "metrics.tls.key_file",
    "nodes[].allow_plaintext",
    "nodes[].ca_file",
    "nodes[].key_file",
    "nodes[].node_id",
    "nodes[].region",
    "nodes[].url",
    "payload_logs.flush_s",
    "payload_logs.max_bytes_each",
    "payload_logs.max_bytes_per_account",
    "payload_logs.max_waiting_bytes",
    "proxies.trusted",
    "queue.max_bytes",
    "queue.max_requests",
    "queue.max_tokens",
    "queue.max_wait_s",
    "region",
    "routing.max_attempts",
    "routing.max_sessions",
    "routing.max_waiting_per_model",
    "routing.regions[].entry",
    "routing.regions[].jurisdiction",
    "routing.regions[].latency_ms",
    "routing.regions[].name",
    "routing.report_ttl_s",
    "routing.resume_patience_s",
    "routing.retry_reserve",
    "routing.session_idle_s",
    "routing.silence_s",
    "routing.strict_entry",
    "shared_limits.budget_s",
    "shared_limits.lease_s",
    "shared_limits.max_failures",
    "shared_limits.num_gateways",
    "shared_limits.probe_pause_s",
    "shared_limits.requests_without_store",
    "shared_limits.streams_without_store",
    "shared_limits.tokens_without_store",
    "shared_limits.url",
    "standby.credential",
    "tracing.ca_file",
    "tracing.endpoint",
    "tracing.flush_s",
    "tracing.headers_file",
    "tracing.max_waiting",
    "tracing.sample_share",
    "tracing.timeout_s",
)


def read(file: Path | None, environ: Mapping[str, str] = MappingProxyType({})) -> GatewaySettings:
    """As `hearth gateway` reads them."""
    return read_settings(GatewaySettings, file, PREFIX, environ)


def test_the_names_of_all_options_are_frozen() -> None:
    assert list_option_names(GatewaySettings) == OPTIONS


def test_everything_works_without_a_file() -> None:
    settings = read(None)
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8787)
    assert (settings.admin.host, settings.admin.port) == ("127.0.0.1", 8788)


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('gateway_id = "a"\n[listen]\nport = 1000\n[limits]\nmax_body_bytes = 5\n')
    settings = read(
        file,
        {
            "HEARTH_GATEWAY__LISTEN__PORT": "2000",
            "HEARTH_GATEWAY__NODES": '[{"node_id":"n","url":"ws://[::1]:1","key_file":"k"}]',
            "GATEWAY_PORT": "tcp://10.0.0.1:80",
        },
    )
    assert settings.gateway_id == "a"
    assert settings.listen.port == 2000
    assert settings.limits.max_body_bytes == 5
    assert settings.nodes[0].key_file == Path("k")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("limts = 1", "limts"),
        ("[limits]\nmax_body_bytes = 0", "max_body_bytes"),
        ("[listen]\nport = 70000", "port"),
        ('gateway_id = "a b"', "a b"),
        (
            '[[nodes]]\nnode_id="n"\nurl="ws://h:1"\nkey_file="k"\nkeyfile="x"',
            r"nodes\[0\]\.keyfile",
        ),
        ('[[nodes]]\nnode_id="n"\nurl="http://h:1"\nkey_file="k"', "n"),
        (
            '[[nodes]]\nnode_id="n"\nurl="wss://h:1"\nkey_file="k"\n' * 2,
            "The `node_id` `n` is listed twice",
        ),
        (
            '[[routing.regions]]\nname="weur"\nlatency_ms=0\njurisdiction="eu"\n' * 2,
            "The region `weur` is listed twice.*routing",
        ),
        (
            '[[routing.regions]]\nname="weur"\nlatency_ms=0\njurisdiction="EU"',
            "`EU` names no jurisdiction: it takes up to 63 lower-case letters.*such as `eu`",
        ),
        (
            '[[routing.regions]]\nname="weur"\nlatency_ms=0\njurisdiction=""',
            "`` names no jurisdiction",
        ),
        (
            '[[routing.regions]]\nname="any"\nlatency_ms=0\njurisdiction="eu"',
            "No region is called `any`",
        ),
        (
            '[[routing.regions]]\nname="weur"\nlatency_ms=0\njurisdiction="none"',
            "No jurisdiction is called `none`",
        ),
        ('region="any"', "No region is called `any`"),
        ('region="we ur"', "`we ur` is not a region's name"),
        (
            '[[nodes]]\nnode_id="n"\nurl="wss://n:1"\nkey_file="k"\nregion="any"',
            "No region is called `any`",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=named):
        read(file)


@pytest.mark.parametrize("host", ["node.example", "10.0.0.7", "0.0.0.0"])
def test_plain_text_to_another_machine_must_be_allowed(tmp_path: Path, host: str) -> None:
    node = f'[[nodes]]\nnode_id="n"\nurl="ws://{host}:1"\nkey_file="k"\n'
    file = tmp_path / "gateway.toml"
    file.write_text(node)
    with pytest.raises(SettingsError, match="wss"):
        read(file)
    file.write_text(node + "allow_plaintext = true\n")
    assert read(file).nodes[0].allow_plaintext


@pytest.mark.parametrize("credential", ["5" * 31, "5" * 513, "5" * 31 + "ä", "5" * 31 + " 5"])
def test_a_credential_of_hot_standby_that_could_be_guessed_or_not_be_sent_is_refused(
    credential: str,
) -> None:
    table = {"standby": {"credential": credential}}
    with pytest.raises(SettingsError, match="32 to 512") as refused:
        decode_settings(GatewaySettings, table, {}, PREFIX)
    assert credential not in str(refused.value)
    good = decode_settings(GatewaySettings, {"standby": {"credential": "5" * 32}}, {}, PREFIX)
    assert good.standby is not None  # the control
