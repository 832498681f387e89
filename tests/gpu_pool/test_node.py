"""A node as a process: signals, sudden deaths, settings, and what it leaves behind."""

import asyncio
import contextlib
import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import httpx
import pytest

from contracts.ids import ModelName
from contracts.inference import Accepted, Finished
from gpu_pool.weight_origin import OriginFile, WeightOrigin, write_origin
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, failure_code
from tests.fixtures.node_process import (
    MODEL,
    ROOT,
    fetch_status,
    is_alive,
    kill_hard,
    list_children,
    run_node_process,
    wait_until,
    write_key,
    write_settings,
)
from tests.fixtures.random_checkpoint import write_random_checkpoint

LONG = ask(MODEL, max_tokens=3500, ignore_eos=True)
DOUBLE = ("-m", "tests.fixtures.double_node", "--step-s", "0.01")
REAL = ("-m", "cli", "node")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint"))


Running = tuple["subprocess.Popen[bytes]", NodeAddress]


@pytest.fixture
def node(tmp_path: Path, checkpoint: Path) -> Iterator[Running]:
    with run_node_process(tmp_path, checkpoint, DOUBLE) as running:
        yield running


async def wait_exit(process: "subprocess.Popen[bytes]", timeout_s: float = 10) -> int:
    """The exit code."""
    return await asyncio.to_thread(process.wait, timeout_s)


def find_private_directory(node_pid: int) -> Path:
    """Where the pipes to the node's cores are: it holds a lock there."""
    locks: list[Path] = []
    for path in Path(f"/proc/{node_pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the node has just closed it
            file = path.readlink()
            if file.name == "owner.lock":
                locks.append(file)
    (lock,) = locks
    return lock.parent


@pytest.mark.parametrize("command", [DOUBLE, REAL], ids=["double", "real"])
async def test_a_killed_core_breaks_its_streams_and_the_node_starts_another(
    tmp_path: Path, checkpoint: Path, command: tuple[str, ...]
) -> None:
    with run_node_process(tmp_path, checkpoint, command) as (process, address):
        (core_pid,) = list_children(process.pid)
        async with GatewayClient(address) as client:
            streams = [await client.open(LONG) for _ in range(4)]
            for stream in streams:
                assert isinstance(await stream.next(), Accepted)
            kill_hard(core_pid)
            killed_s = time.monotonic()
            for stream in streams:
                assert failure_code(await stream.read_all()) == "stream_broken"
            assert time.monotonic() - killed_s < 2
            assert fetch_status(address.url + "/health/ready") == 503
            events = await client.generate(ask(MODEL))  # it waits for the new core
            assert isinstance(events[-1], Finished)
        assert fetch_status(address.url + "/health/ready") == 200
        assert list_children(process.pid) != [core_pid]


async def test_cores_die_with_their_node(node: Running) -> None:
    process, address = node
    children = list_children(process.pid)
    assert len(children) == 1
    async with GatewayClient(address) as client:
        stream = await client.open(LONG)
        assert isinstance(await stream.next(), Accepted)
        kill_hard(process.pid)
        await wait_until(lambda: not any(map(is_alive, children)))


async def test_sigterm_lets_streams_finish_then_leaves_nothing_behind(node: Running) -> None:
    process, address = node
    (core_pid,) = list_children(process.pid)
    directory = find_private_directory(process.pid)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    async with GatewayClient(address) as client:
        stream = await client.open(ask(MODEL, max_tokens=60, ignore_eos=True))
        assert isinstance(await stream.next(), Accepted)
        process.send_signal(signal.SIGTERM)
        while not (await asyncio.wait_for(client.reports.get(), 5)).is_draining:
            pass
        assert failure_code(await client.generate(ask(MODEL))) == "pool_saturated"
        assert isinstance((await stream.read_all())[-1], Finished)
        assert await client.wait_closed() == aiohttp.WSCloseCode.GOING_AWAY
    assert await wait_exit(process) == 0
    assert not is_alive(core_pid)
    assert not directory.exists()


async def test_draining_ends_with_the_grace_period(tmp_path: Path, checkpoint: Path) -> None:
    with run_node_process(tmp_path, checkpoint, DOUBLE, drain_s=0.5) as (process, address):
        async with GatewayClient(address) as client:
            stream = await client.open(LONG)
            assert isinstance(await stream.next(), Accepted)
            process.send_signal(signal.SIGINT)
            assert await wait_exit(process) == 0
            await client.wait_closed()


async def test_a_second_signal_ends_the_node_at_once(node: Running) -> None:
    process, address = node
    children = list_children(process.pid)
    async with GatewayClient(address) as client:
        stream = await client.open(LONG)
        assert isinstance(await stream.next(), Accepted)
        process.send_signal(signal.SIGTERM)
        while not (await asyncio.wait_for(client.reports.get(), 5)).is_draining:
            pass
        started_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await wait_exit(process) == 1
        assert time.monotonic() - started_s < 2
    await wait_until(lambda: not any(map(is_alive, children)))


async def test_logs_tell_what_happens_and_never_what_was_said(
    tmp_path: Path, checkpoint: Path
) -> None:
    secret = "xylophone-marmalade"
    with run_node_process(tmp_path, checkpoint, DOUBLE) as (process, address):
        async with GatewayClient(address) as client:
            await client.generate(ask(MODEL, secret))
            await client.generate(ask(MODEL, secret, max_tokens=100_000))
            await client.generate(ask(MODEL, secret, temperature=-1.0))
            await client.send_frame(b"\xc1" + secret.encode())
            await client.wait_closed()
        process.terminate()
        await wait_exit(process)
        log = (tmp_path / "node.log").read_text(encoding="utf-8")
        assert '"event": "a gateway has connected"' in log
        assert '"event": "the model is ready"' in log
        assert secret not in log
        assert address.pair_key.hex() not in log


@contextmanager
def run_unready_node(folder: Path, model: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A node of one model that may never be ready; it logs to `node.log` in `folder`."""
    write_key(folder / "gateway.key")
    settings = write_settings(folder, model, find_port())
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *REAL, "--config", str(settings)], cwd=ROOT, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def run_to_failure(settings: Path) -> str:
    """What a node that cannot start says."""
    result = subprocess.run(
        [sys.executable, *REAL, "--config", str(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_node_that_cannot_start_says_why(tmp_path: Path, checkpoint: Path) -> None:
    key_file = tmp_path / "gateway.key"
    write_key(key_file)
    settings = write_settings(tmp_path, checkpoint, find_port())
    key_file.chmod(0o644)
    assert "0600" in run_to_failure(settings)
    key_file.chmod(0o600)
    settings.write_text("nonsense = 1", encoding="utf-8")
    assert "nonsense" in run_to_failure(settings)
    assert "Cannot read" in run_to_failure(tmp_path / "missing.toml")


async def test_a_core_is_told_what_a_copy_of_its_fetched_weights_may_take(
    tmp_path: Path, checkpoint: Path
) -> None:
    """The model's own part of `disk_bytes`; without a budget (the control) it is told of none."""
    fetched = shutil.copytree(checkpoint, tmp_path / "fetched")
    num_bytes = (fetched / "model.safetensors").stat().st_size
    file = OriginFile(name="model.safetensors", num_bytes=num_bytes, sha256="0" * 64)
    write_origin(fetched, WeightOrigin(url="https://mirror.example/model", files=(file,)))
    placement = f"[placement]\ndevice_bytes = {1 << 32}\n"
    for more, room in ((f"disk_bytes = {num_bytes + 1000}\n", 1000), ("", None)):
        settings = placement + more
        with run_node_process(tmp_path, fetched, DOUBLE, more_settings=settings) as (process, _):
            folder = find_private_directory(process.pid)
            (told,) = [json.loads(path.read_bytes()) for path in folder.glob("core-*.json")]
            assert told["copy_room_bytes"] == room


async def test_broken_models_do_not_stop_a_good_one(tmp_path: Path, checkpoint: Path) -> None:
    corrupt = shutil.copytree(checkpoint, tmp_path / "corrupt")
    (corrupt / "model.safetensors").write_bytes(b"\xff" * 1000)
    (tmp_path / "empty").mkdir()
    more = f"""
[[models]]
name = "@test/corrupt"
path = {json.dumps(str(corrupt))}
[[models]]
name = "@test/empty"
path = {json.dumps(str(tmp_path / "empty"))}
"""
    with run_node_process(tmp_path, checkpoint, REAL, more_settings=more) as (process, address):
        answer = await asyncio.to_thread(httpx.get, address.url + "/health/ready")
        states = {model["name"]: model for model in answer.json()["models"]}
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert {name: model["state"] for name, model in states.items()} == {
            MODEL: "ready",
            "@test/corrupt": "failed",
            "@test/empty": "failed",
        }
        assert str(tmp_path) not in answer.text  # anyone may ask; paths are for operators
        async with GatewayClient(address) as client:
            report = await asyncio.wait_for(client.reports.get(), 5)
            assert [card.name for card in report.models] == [MODEL]
            reasons = {failed.name: failed.reason for failed in report.failed}
            assert "model.safetensors" in reasons[ModelName("@test/corrupt")]
            assert "config.json" in reasons[ModelName("@test/empty")]
            assert isinstance((await client.generate(ask(MODEL)))[-1], Finished)
        await wait_until(lambda: len(list_children(process.pid)) == 1)
        log = tmp_path / "node.log"
        await wait_until(lambda: "the model has failed for good" in log.read_text("utf-8"))


async def test_a_node_none_of_whose_models_can_be_served_keeps_no_process_for_them(
    tmp_path: Path, checkpoint: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for path, is_served in ((checkpoint, True), (tmp_path / "empty", False)):
        folder = tmp_path / path.name / "node"
        folder.mkdir(parents=True)
        with run_unready_node(folder, path) as process:
            log = folder / "node.log"
            await wait_until(lambda log=log: "the node listens" in log.read_text("utf-8"), 30)
            assert bool(list_children(process.pid)) == is_served
            process.terminate()
            assert await wait_exit(process) == 0
