"""How many files a gateway's process may open, of which every connection is one.

A shell mostly allows 1,024 and lets a process raise that. Who has none left cannot even accept a
connection, to refuse it or to make room for it. Read next: `gateway.middleware.crowd`.
"""

import resource
from typing import Final

import msgspec
import structlog

from gateway.settings import GatewaySettings

log = structlog.get_logger(__name__)
SPARE_FILES: Final = 256
"""For nodes, databases, journal and the rest."""


def find_most_files() -> float:
    """How many a process may open that asks for it; infinity where there is no bound."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if hard == resource.RLIM_INFINITY else hard


def fit_connections(settings: GatewaySettings) -> GatewaySettings:
    """Has as many files allowed as the connections of `settings` take. Where there are not so many,
    there are as many fewer connections, and the log says so.
    """
    limits = settings.limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings
    most = int(min(wanted, find_most_files()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == wanted:
        return settings
    num_connections = max(most - SPARE_FILES, most // 2, 1)
    log.warning("too_few_open_files", allowed=most, wanted=wanted, max_connections=num_connections)
    return msgspec.structs.replace(
        settings, limits=msgspec.structs.replace(limits, max_connections=num_connections)
    )
