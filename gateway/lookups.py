"""What is looked up in tenancy and remembered until something changes there: who asks, and files.

A part of the composition root. Read next: `gateway.auth.composition`,
`gateway.finetunes.composition`.
"""

from dataclasses import dataclass

from gateway.auth.composition import Authenticators, create_authenticators
from gateway.finetunes.composition import create_reader
from gateway.finetunes.reader import FinetuneReader
from gateway.settings import GatewaySettings
from gateway.sources import Sources
from tenancy.interfaces import TenancyDirectory


@dataclass(frozen=True, slots=True)
class Lookups:
    """Whoever knows whose a credential is, and what nodes get adapters' files from."""

    authenticators: Authenticators
    adapter_reader: FinetuneReader


def create_lookups(
    settings: GatewaySettings, tenancy: TenancyDirectory, sources: Sources
) -> Lookups:
    """Nothing is known yet."""
    authenticators = create_authenticators(
        tenancy, settings.auth, settings.standby, settings.proxies, sources
    )
    return Lookups(authenticators, create_reader(tenancy, authenticators.cache))
