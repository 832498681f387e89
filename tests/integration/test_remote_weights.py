"""A real node whose models' weights are on a mirror: fetched for a request, given up for others,
gone on with after kill -9, and never served when they are not what was listed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.fleet import NodeReport
from contracts.ids import ModelName
from contracts.placement import ModelPlacement, Tier
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code, join_ids
from tests.fixtures.mirror import Mirror, read_weights, serve_mirror
from tests.fixtures.node_process import MODEL, kill_hard, run_node_process, wait_until
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.fixtures.remote_model import write_remote_model
from tests.integration.test_weight_faults import answer, answer_in_the_end, read_report

pytestmark = pytest.mark.slow

AWAY = ModelName("@test/away")
OTHER = ModelName("@test/other")
NAME = "model.safetensors"


class Fleet:
    """One checkpoint on disk, and two that two mirrors have."""

    def __init__(self, directory: Path, away: Mirror, other: Mirror) -> None:
        self.directory = directory
        self.mirrors = {AWAY: away, OTHER: other}
        self.local = write_random_checkpoint(directory / "local", seed=0)
        self.folders: dict[ModelName, Path] = {}
        for seed, (name, mirror) in enumerate(self.mirrors.items(), 1):
            whole = write_random_checkpoint(directory / f"whole-{seed}", seed=seed)
            mirror.files |= read_weights(whole)
            folder = directory / name.removeprefix("@test/")
            self.folders[name] = write_remote_model(folder, whole, mirror.url)
        self.size = len(away.files[NAME])

    @property
    def settings(self) -> str:
        """One model at a time on the device, and the weights of one on disk."""
        models = "".join(
            f'[[models]]\nname = "{name}"\npath = "{path}"\n' for name, path in self.folders.items()
        )
        room = f"device_bytes = 70000000\nhost_bytes = 0\ndisk_bytes = {self.size * 3 // 2}\n"
        return f"\n[placement]\n{room}turn_s = 0.0\n{models}"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with serve_mirror({}) as away, serve_mirror({}) as other:
        yield Fleet(tmp_path, away, other)


def find(report: NodeReport, name: ModelName) -> ModelPlacement:
    return next(one for one in report.placements if one.name == name)


async def test_weights_come_for_a_request_and_go_for_another_models(fleet: Fleet) -> None:
    with run_node_process(fleet.directory, fleet.local, more_settings=fleet.settings) as (
        _,
        address,
    ):
        async with GatewayClient(address) as client:
            report = await read_report(client)
            assert {find(report, name).tier for name in (AWAY, OTHER)} == {Tier.REMOTE}
            assert find(report, AWAY).weights_bytes >= fleet.size
            assert fleet.mirrors[AWAY].num_sent == 0  # the control: a start fetches nothing
            tokens = {name: await answer_in_the_end(client, name) for name in (MODEL, AWAY, OTHER)}
            assert len(set(tokens.values())) == 3
            assert fleet.mirrors[AWAY].num_sent == fleet.size
            await wait_until(lambda: not (fleet.folders[AWAY] / NAME).exists())
            assert await answer_in_the_end(client, AWAY) == tokens[AWAY]
            assert fleet.mirrors[AWAY].num_sent == 2 * fleet.size
            report = await read_report(client)
            assert 0 < report.memory.disk_used_bytes <= report.memory.disk_budget_bytes


async def test_a_node_killed_in_a_fetch_goes_on_with_it(fleet: Fleet) -> None:
    mirror, folder = fleet.mirrors[AWAY], fleet.folders[AWAY]
    mirror.bytes_per_s = fleet.size / 6
    partial = folder / f"{NAME}.partial"
    with run_node_process(fleet.directory, fleet.local, more_settings=fleet.settings) as (
        process,
        address,
    ):
        async with GatewayClient(address) as client:
            await client.open(ask(AWAY, max_tokens=12), model=AWAY)
            await wait_until(
                lambda: partial.exists() and partial.stat().st_size > fleet.size // 2, timeout_s=60
            )
            kill_hard(process.pid)
            process.wait()
    kept = partial.stat().st_size
    mirror.bytes_per_s = 0
    with run_node_process(fleet.directory, fleet.local, more_settings=fleet.settings) as (
        _,
        address,
    ):
        async with GatewayClient(address) as client:
            report = await read_report(client)
            assert find(report, AWAY).fetched_bytes == kept
            await answer_in_the_end(client, AWAY)
    assert mirror.sent[1:] == [fleet.size - kept]
    assert mirror.requests[-1][1] == f"bytes={kept}-"


async def test_other_bytes_than_listed_are_never_served(fleet: Fleet) -> None:
    mirror = fleet.mirrors[AWAY]
    sound = mirror.files[NAME]
    mirror.files[NAME] = sound[:-1] + bytes([sound[-1] ^ 1])
    with run_node_process(fleet.directory, fleet.local, more_settings=fleet.settings) as (
        _,
        address,
    ):
        async with GatewayClient(address) as client:
            for _ in range(3):
                assert failure_code(await answer(client, AWAY)) == "model_cold"
            assert len(mirror.requests) == 1  # not asked for again with every request
            assert not (fleet.folders[AWAY] / NAME).exists()
            assert join_ids(await answer(client, MODEL))  # others are served
    mirror.files[NAME] = sound
    with run_node_process(fleet.directory, fleet.local, more_settings=fleet.settings) as (
        _,
        address,
    ):
        async with GatewayClient(address) as client:
            assert await answer_in_the_end(client, AWAY)  # the control
