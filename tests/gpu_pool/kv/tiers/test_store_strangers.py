"""The store's client asks nobody who he is, so its ports are in a network without strangers.

A real master and real clients at sites of their own, in network namespaces. The stranger is in the
machine's own network, where a client without the setting is found.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec
import pytest
import structlog

from benchmarks.fleet.sites import Sites, make_sites
from gpu_pool.carriers import create_carriers
from gpu_pool.engine.executor_double import ExecutorDouble, create_double_info
from gpu_pool.kv.tiers.settings import HostTierSettings, StoreTierSettings, TierSettings
from gpu_pool.model_settings import EngineSettings
from gpu_pool.transfer_settings import TransferSettings
from tests.fixtures.listening import can_connect, list_ports
from tests.fixtures.mooncake_master import MooncakeMaster, run_master
from tests.gpu_pool.engine.test_encoder_core import ScriptedTransport
from tests.gpu_pool.kv.tiers.blocks import blank, create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.store_nodes import (
    StoreNode,
    create_store_settings,
    open_node,
    wait_until,
)
from tests.gpu_pool.server.test_core_process import TEMPLATE
from tests.gpu_pool.transfer.peer import find_namespace, need_namespaces


@pytest.fixture
def sites() -> Iterator[Sites]:
    need_namespaces()
    with make_sites(("store", "first", "second")) as made:
        yield made


def enter(sites: Sites, site: str) -> tuple[str, ...]:
    """What runs a command at a site."""
    return ("ip", "netns", "exec", find_namespace(sites, site).name)


def run_master_at(sites: Sites, folder: Path) -> AbstractContextManager[MooncakeMaster]:
    """A master that only sites reach."""
    return run_master(folder, host=sites.find_address("store"), inside=enter(sites, "store"))


def create_settings_at(master: MooncakeMaster, sites: Sites, site: str) -> StoreTierSettings:
    """A node whose client is at a site."""
    return msgspec.structs.replace(
        create_store_settings(master),
        local_host=sites.find_address(site),
        network_namespace=find_namespace(sites, site),
    )


def find_network(node: StoreNode) -> int:
    """The network in which a node's client has its ports."""
    return os.stat(f"/proc/{node.client.process_id}/ns/net").st_ino


def test_a_stranger_reaches_no_port_of_a_client_in_a_network_of_its_own(
    sites: Sites, tmp_path: Path
) -> None:
    space, (name,) = create_space(), name_blocks(create_space(), 1)
    with (
        run_master_at(sites, tmp_path) as master,
        open_node(create_settings_at(master, sites, "first")) as first,
        open_node(create_settings_at(master, sites, "second")) as second,
    ):
        assert first.tier.keep(space, name, fill(1))
        block = blank()
        assert second.tier.fetch(space, name, block), "through the network of the sites"
        assert block == fill(1)
        for node, site in ((first, "first"), (second, "second")):
            inside, pid = enter(sites, site), node.client.process_id
            assert pid is not None
            assert find_network(node) == os.stat(find_namespace(sites, site)).st_ino
            ports, address = list_ports(inside, pid), sites.find_address(site)
            assert ports
            insider = enter(sites, "store")
            assert all(can_connect(insider, address, port) for port in ports), "the control"
            assert list_ports((), pid) == []
            free = set(ports) - set(list_ports(()))  # others may have the number here
            assert not any(can_connect((), "127.0.0.1", port) for port in free)


def test_without_the_setting_a_stranger_reaches_the_client(tmp_path: Path) -> None:
    """The control, which reads what is lent there as well."""
    need_namespaces()
    with (
        run_master(tmp_path) as master,
        open_node(create_store_settings(master)) as node,
    ):
        ports = list_ports((), node.client.process_id)
        assert ports
        assert all(can_connect((), "127.0.0.1", port) for port in ports)


def test_a_client_that_cannot_enter_its_network_listens_in_no_other_and_enters_it_once_it_is_there(
    sites: Sites, tmp_path: Path
) -> None:
    with run_master_at(sites, tmp_path) as master:
        later = tmp_path / "later"
        settings = msgspec.structs.replace(
            create_settings_at(master, sites, "first"), network_namespace=later
        )
        with (
            structlog.testing.capture_logs() as lines,
            open_node(settings, is_waiting=False) as node,
        ):
            wait_until(lambda: len(lines) > 0)
            assert lines[0]["reason"] == (
                f"The network namespace {later} cannot be entered: No such file or directory."
            )
            assert node.client.is_away
            later.symlink_to(find_namespace(sites, "first"))
            node.wait_back()
            assert find_network(node) == os.stat(later).st_ino


def test_the_network_of_transfers_is_the_clients_too_unless_it_has_one_of_its_own() -> None:
    kv, own = Path("/run/netns/kv"), Path("/run/netns/own")
    store = StoreTierSettings(master="10.77.0.5:50051", max_bytes=10**9)
    separate = msgspec.structs.replace(store, network_namespace=own)
    cases = ((store, None, None), (store, kv, kv), (separate, kv, own), (separate, None, own))
    for section, of_transfers, expected in cases:
        placed = TierSettings(store=section).in_network(of_transfers).store
        assert placed is not None
        assert placed.network_namespace == expected
    host = TierSettings(host=HostTierSettings(max_bytes=10**9))
    assert host.in_network(kv) == host


def test_a_core_gives_its_stores_client_the_network_of_its_transfers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kv, seen = Path("/run/netns/kv"), list[TierSettings]()

    class SeenError(Exception):
        """The tiers need not be made."""

    def see(settings: TierSettings, *_: object) -> None:
        seen.append(settings)
        raise SeenError

    monkeypatch.setattr("gpu_pool.carriers.create_tiers", see)
    monkeypatch.setattr("gpu_pool.carriers.create_exchange", lambda *_: None)
    tiers = TierSettings(store=StoreTierSettings(master="10.77.0.5:50051", max_bytes=10**9))
    settings = msgspec.structs.replace(
        TEMPLATE,
        engine=EngineSettings(tiers=tiers),
        transfer=TransferSettings(network_namespace=kv),
    )
    executor = ExecutorDouble(create_double_info())
    with pytest.raises(SeenError), ExitStack() as stack:
        create_carriers(settings, executor, ScriptedTransport(), stack)
    assert seen == [tiers.in_network(kv)]
