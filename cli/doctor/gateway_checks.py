"""Checks of a gateway's own settings and files: what listens where, who can read which key.

Asks nobody else. Read next: `store_checks`, `fleet_checks`.
"""

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor.finding import Area, Findings, Level
from contracts.settings import SettingsError

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings


def check_settings(settings: "GatewaySettings", findings: Findings) -> None:
    """What listens where, and what is said in the clear."""
    area = Area.CONFIGURATION
    if not settings.nodes and settings.membership is None:
        findings.add(
            area,
            Level.PROBLEM,
            "No node is configured.",
            "Name the gateway's file with `--config`, and add one `[[nodes]]` section per node.",
        )
    else:
        named = "1 node is" if len(settings.nodes) == 1 else f"{len(settings.nodes)} nodes are"
        findings.ok(area, f"The settings are understood; {named} named.")
    for name, listen in (("listen", settings.listen), ("admin", settings.admin)):
        if listen.tls is None and not is_loopback(listen.host):
            findings.add(
                area,
                Level.WARNING,
                f"`{name}` is on {listen.host} without TLS.",
                f"Give `{name}.tls` a certificate, or let only a proxy of yours reach the port.",
            )
        elif listen.tls is not None:
            check_certificate(name, listen.tls.certificate_file, listen.tls.key_file, findings)
    for node in settings.nodes:
        if node.allow_plaintext and node.url.startswith("ws://"):
            findings.add(
                area,
                Level.NOTE,
                f"The way to {node.node_id} is not encrypted (`allow_plaintext`).",
                "Fine on a network that carries nothing else; use wss:// on any other.",
            )
        if node.region is None:
            findings.add(
                area,
                Level.WARNING,
                f"{node.node_id} may say itself which region it is in.",
                "Set `region` in its `[[nodes]]` section: residency rests on it.",
            )
    if settings.metrics is not None and not is_loopback(settings.metrics.host):
        findings.add(
            area,
            Level.NOTE,
            f"Metrics can be read on {settings.metrics.host}:{settings.metrics.port} by whoever "
            "reaches it.",
            "They name no tenant; let only Prometheus reach the port.",
        )


def check_entries(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether whoever may not enter here is told where to, and entries are named for somebody."""
    area, own, is_strict = Area.CONFIGURATION, settings.region, settings.routing.strict_entry
    others = [region for region in settings.routing.regions if region.name != own]
    entries = [region.name for region in others if region.entry is not None]
    unnamed = [region.name for region in others if region.entry is None]
    if is_strict and not entries:
        findings.add(
            area,
            Level.WARNING,
            f"`routing.strict_entry` refuses who may not enter in {own}, and no other region of "
            "`[[routing.regions]]` names an `entry`: nobody is told where to go instead.",
            "Name the origins of the gateways there, such as `entry = "
            '"https://enam.example.com"`; where there are none, turn `strict_entry` off, for such '
            "requests can enter nowhere.",
        )
    elif is_strict and unnamed:
        findings.add(
            area,
            Level.NOTE,
            f"`routing.strict_entry` refuses who may not enter in {own}, and {', '.join(unnamed)} "
            f"{'names' if len(unnamed) == 1 else 'name'} no `entry`: who is bound to that alone is "
            "not told where to go.",
            "Name the origin of the gateways there, if there are some.",
        )
    elif entries and not is_strict:
        findings.add(
            area,
            Level.NOTE,
            f"`[[routing.regions]]` names an `entry` for {', '.join(entries)}, and "
            "`routing.strict_entry` is off: requests of every account enter here, and nobody is "
            "told of it.",
            "Turn `routing.strict_entry` on where requests of accounts that are bound to other "
            "regions must not enter.",
        )


def check_keys(settings: "GatewaySettings", findings: Findings) -> None:
    """The key ring, the keys of the pairs and the audit log's heads."""
    from gateway.upstream.pair_key_file import load_pair_key
    from tenancy.encryption.key_ring_file import load_key_ring

    area, ring = Area.KEYS, settings.key_ring.file
    advice = f"Run `hearth keys ensure --ring {ring}` for a new installation, or bring the backup."
    with findings.expecting(area, "The key ring cannot be used", advice, SettingsError):
        load_key_ring(ring)
        findings.ok(area, f"The key ring {ring} is whole and its owner's alone.")
    for node in settings.nodes:
        advice = f"Run `hearth keys ensure --pair {node.key_file}` and bring the node a copy."
        what = f"The key of {node.node_id} cannot be used"
        with findings.expecting(area, what, advice, SettingsError):
            load_pair_key(node.key_file)
            findings.ok(area, f"The key shared with {node.node_id} has its form and mode.")
    heads = settings.audit.find_heads_file(ring)
    if not heads.exists():
        findings.add(
            area,
            Level.NOTE,
            f"There are no signed heads of the audit log at {heads} yet.",
            "They come with the first change. In an installation that is in use this file is "
            "missing: bring it back, or `hearth audit verify` cannot show a log that was cut.",
        )


def check_certificate(name: str, certificate: Path, key: Path, findings: Findings) -> None:
    """Whether a certificate can be used, and for how long."""
    import ssl
    from datetime import UTC, datetime

    from gateway.certificates import read_certificate_end

    area = Area.CONFIGURATION
    advice = f"Name a PEM certificate and its key in `{name}.tls`."
    with findings.expecting(
        area, f"`{name}.tls` cannot be used", advice, OSError, ValueError, ssl.SSLError
    ):
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        left = read_certificate_end(certificate) - datetime.now(UTC)
        if left.days < 0:
            level, advice = Level.PROBLEM, "Renew it: clients refuse it already."
        elif left.days < 14:
            level, advice = Level.WARNING, "Renew it and start the process again."
        else:
            level, advice = Level.OK, ""
        findings.add(area, level, f"The certificate of `{name}` ends in {left.days} days.", advice)


def check_descriptors(settings: "GatewaySettings", findings: Findings) -> None:
    """Whether the process may open as many files as it may have connections."""
    from gateway.open_files import SPARE_FILES, find_most_files

    most = find_most_files()
    wanted = settings.limits.max_connections + SPARE_FILES
    if most < wanted:
        findings.add(
            Area.MACHINE,
            Level.WARNING,
            f"A process started like this one may open {most} files; "
            f"`limits.max_connections` allows {settings.limits.max_connections} connections. "
            "The gateway takes as many fewer.",
            f"Raise the limit to {wanted} (LimitNOFILE, ulimit -n) or lower the setting.",
        )
    else:
        findings.ok(Area.MACHINE, "Enough files may be open for all connections.")


def is_loopback(host: str) -> bool:
    """True when nothing outside this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
