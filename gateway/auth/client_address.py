"""Where a request came from, as far as that can be believed.

A forwarded header is what the client likes to write, unless the connection comes from a proxy that
the settings name: then the last hop that is not itself such a proxy is the client. Must not know
who may come from where (`tenancy.policies`).
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.settings import ProxySettings
from tenancy.policies import Address

_FORWARDED_FOR: Final = b"x-forwarded-for"
_MAX_HOPS: Final = 32
Headers = Sequence[tuple[bytes, bytes]]


class ClientAddresses:
    """Reads clients' addresses."""

    def __init__(self, settings: ProxySettings) -> None:
        """`settings` have been checked."""
        self._proxies = tuple(ipaddress.ip_network(text) for text in settings.trusted)

    def find(self, peer: str | None, headers: Headers) -> Address | None:
        """The client's address; None when it is unknown or a proxy's word makes no sense."""
        address = _parse(peer)
        if address is None or not self._is_proxy(address):
            return address
        for hop in reversed(_list_hops(headers)):
            address = _parse(hop)
            if address is None or not self._is_proxy(address):
                return address
        return address

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _list_hops(headers: Headers) -> list[str]:
    """Every hop that proxies have noted, the nearest one last; too many of them count as none."""
    lines = (value.decode("latin-1") for name, value in headers if name == _FORWARDED_FOR)
    hops = [hop.strip() for hop in ",".join(lines).split(",")]
    return _drop_empty(hops) if len(hops) <= _MAX_HOPS else [""]


def _drop_empty(hops: Iterable[str]) -> list[str]:
    """No header is no hop; an empty one between others stays, and cannot be believed."""
    kept = list(hops)
    return [] if kept == [""] else kept


def _parse(text: str | None) -> Address | None:
    """The address that `text` spells; an IPv4 address inside an IPv6 one is an IPv4 address."""
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
