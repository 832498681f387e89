"""Everybody who can tell whose a credential is, put together.

Read next: `gateway.auth.authenticator`, `gateway.auth.standby_credential`.
"""

from dataclasses import dataclass

from gateway.auth.authenticator import Authenticator, OperatorAuthenticator
from gateway.auth.client_address import ClientAddresses
from gateway.auth.failed_attempts import FailedAttempts
from gateway.auth.operator_sessions import OperatorSessions
from gateway.auth.principal_cache import PrincipalCache
from gateway.auth.standby_credential import StandbyCredential
from gateway.auth.standing import Standing
from gateway.auth.token_uses import TokenUses
from gateway.settings import AuthSettings, ProxySettings, StandbyAccessSettings
from gateway.sources import Sources
from tenancy.interfaces import TenancyDirectory


@dataclass(frozen=True, slots=True)
class Authenticators:
    """All kinds, the cache whose epoch somebody must follow, and the uses that must be written."""

    api_tokens: Authenticator
    operators: OperatorAuthenticator
    sessions: OperatorSessions
    standby: StandbyCredential
    addresses: ClientAddresses
    cache: PrincipalCache
    standing: Standing
    uses: TokenUses


def create_authenticators(
    tenancy: TenancyDirectory,
    settings: AuthSettings,
    standby: StandbyAccessSettings | None,
    proxies: ProxySettings,
    sources: Sources,
) -> Authenticators:
    """Authenticators that ask `tenancy`."""
    cache = PrincipalCache(tenancy, settings, sources)
    addresses = ClientAddresses(proxies)
    failures, failures_of_operators = (FailedAttempts(settings, sources) for _ in range(2))
    uses = TokenUses(tenancy, sources)
    return Authenticators(
        Authenticator(cache, addresses, failures, uses, sources),
        OperatorAuthenticator(tenancy, addresses, failures_of_operators),
        OperatorSessions(tenancy, sources),
        StandbyCredential(standby),
        addresses,
        cache,
        Standing(cache, tenancy, sources),
        uses,
    )
