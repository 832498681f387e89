"""Whose word counts for where a client is: the connection's, and that of named proxies."""

import ipaddress

import pytest

from gateway.auth.client_address import ClientAddresses
from gateway.settings import ProxySettings

BEHIND_TWO = ClientAddresses(ProxySettings(trusted=("10.0.0.0/8", "2001:db8::/32")))
ALONE = ClientAddresses(ProxySettings())
CLIENT, PROXY, INNER = "203.0.113.7", "10.0.0.2", "10.0.0.1"


def find(addresses: ClientAddresses, peer: str | None, *lines: str) -> str | None:
    """The address as text."""
    headers = [(b"x-forwarded-for", line.encode()) for line in lines]
    address = addresses.find(peer, [(b"host", b"h"), *headers])
    return None if address is None else str(address)


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        (CLIENT, (), CLIENT),
        (CLIENT, ("192.0.2.1",), CLIENT),  # a stranger's header
        (PROXY, (CLIENT,), CLIENT),
        (PROXY, (f"192.0.2.1, {CLIENT}",), CLIENT),  # what stands before is the client's own claim
        (PROXY, (f"192.0.2.1, {CLIENT}, {INNER}",), CLIENT),
        (PROXY, ("192.0.2.1", CLIENT), CLIENT),  # several lines are one list
        (PROXY, (), PROXY),
        (PROXY, (INNER,), INNER),
        (PROXY, ("unknown",), None),
        (PROXY, (f"{CLIENT}, nonsense",), None),
        (PROXY, (f"{CLIENT}, ",), None),
        (PROXY, (f"{CLIENT}:4711",), None),
        (PROXY, (", ".join([CLIENT] * 40),), None),
        ("2001:db8::1", (CLIENT,), CLIENT),
        (f"::ffff:{PROXY}", (f"::ffff:{CLIENT}",), CLIENT),
        (None, (CLIENT,), None),
        ("", (), None),
    ],
)
def test_the_last_hop_that_is_no_proxy_of_ours_is_the_client(
    peer: str | None, lines: tuple[str, ...], expected: str | None
) -> None:
    assert find(BEHIND_TWO, peer, *lines) == expected


@pytest.mark.parametrize("peer", [CLIENT, PROXY, "127.0.0.1"])
def test_without_named_proxies_nobody_s_header_counts(peer: str) -> None:
    assert find(ALONE, peer, "192.0.2.1") == peer


def test_settings_name_networks_and_nothing_else() -> None:
    assert ProxySettings(trusted=("10.0.0.0/8",)).trusted
    for wrong in ("proxy.example", "10.0.0.1/8", ""):
        with pytest.raises(ValueError, match=r".*"):
            ProxySettings(trusted=(wrong,))


def test_addresses_compare_with_networks_of_either_kind() -> None:
    network = ipaddress.ip_network("203.0.113.0/24")
    address = BEHIND_TWO.find(f"::ffff:{CLIENT}", [])
    assert address is not None
    assert address in network
