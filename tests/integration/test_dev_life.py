"""The life of `hearth dev`: starts, refusals, deaths of its parts, ends without orphans."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gpu_pool.model_store import BUNDLED_PATH
from tests.integration.account_client import MODEL
from tests.integration.process_tree import find_descendant, list_descendants, list_survivors
from tests.integration.running_dev import (
    HEARTH,
    RunningDev,
    choose_ports,
    create_arguments,
    run_hearth,
    start_dev,
    wait_until,
)

RecordProperty = Callable[[str, object], None]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def ask(dev: RunningDev, model: str = MODEL) -> int:
    """The status of a small request."""
    try:
        response = httpx.post(
            f"{dev.account_url}/ai/run/{model}",
            headers={"Authorization": f"Bearer {dev.access.api_token}"},
            json={"prompt": "Hi", "max_tokens": 2},
            timeout=60,
        )
    except httpx.TransportError:
        return 0
    return response.status_code


def stop_and_check(running: RunningDev, number: signal.Signals) -> None:
    """Ends `running` by a signal; all that belonged to it has to be gone then."""
    family = list_descendants(running.process.pid)
    assert len(family) >= 3  # gateway, node, engine core: the control
    assert running.stop(number) == 0
    wait_until(lambda: not list_survivors(family), 10, lambda: str(list_survivors(family)))


def test_ctrl_c_leaves_no_process_and_the_next_start_uses_the_same_credentials(
    state: Path, record_property: RecordProperty
) -> None:
    with start_dev(state) as first:
        stop_and_check(first, signal.SIGINT)
    begun = time.monotonic()
    with start_dev(state, first.ports) as second:
        record_property("second_start_s", time.monotonic() - begun)
        assert second.access == first.access
        assert "Keys and database: found" in second.read_output()
        assert ask(second) == 200


def test_the_state_is_closed_to_others(dev: RunningDev) -> None:
    assert stat.S_IMODE(dev.home.root.stat().st_mode) == 0o700
    for file in (dev.home.access, dev.home.key_ring, dev.home.pair_key, dev.home.gateway_settings):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert dev.access.models == (MODEL,)


def test_a_second_dev_in_the_same_folder_is_refused(dev: RunningDev) -> None:
    result = run_hearth(*create_arguments(dev.home.root, choose_ports()))
    assert result.returncode == 1
    assert f"process {dev.process.pid}" in result.stderr
    assert "--dir" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("position", range(3), ids=["--port", "--admin-port", "--node-port"])
def test_a_port_in_use_is_named_with_its_option(
    dev: RunningDev, state: Path, position: int
) -> None:
    ports = list(choose_ports())
    ports[position] = dev.ports[position]
    option = ("--port", "--admin-port", "--node-port")[position]
    result = run_hearth(*create_arguments(state, (ports[0], ports[1], ports[2])))
    assert result.returncode == 1
    assert f"Port {ports[position]} ({option})" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "number"), [(" gateway ", signal.SIGTERM), (" node ", signal.SIGHUP)]
)
def test_a_part_that_is_killed_is_reported_and_started_again(
    state: Path, part: str, number: signal.Signals
) -> None:
    with start_dev(state) as running:
        family = list_descendants(running.process.pid)
        victim = find_descendant(running.process.pid, part)
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(
            lambda: f"The{part}was killed by signal 9." in running.read_output(),
            20,
            running.read_output,
        )
        wait_until(lambda: ask(running) == 200, 60, running.read_output)
        assert find_descendant(running.process.pid, part).pid != victim.pid
        survivors = list_survivors(family)
        assert victim not in survivors
        cores = [row for row in list_descendants(running.process.pid) if "core" in row.command]
        assert len(cores) == 1
        stop_and_check(running, number)


def test_the_death_of_dev_itself_leaves_no_orphan(state: Path) -> None:
    with start_dev(state) as running:
        family = list_descendants(running.process.pid)
        assert len(family) >= 3
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not list_survivors(family), 30, lambda: str(list_survivors(family)))


@pytest.fixture
def starting(state: Path) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [*HEARTH, *create_arguments(state, choose_ports())],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_during_the_start_ends_it_cleanly(
    starting: "subprocess.Popen[bytes]", state: Path
) -> None:
    wait_until((state / "logs" / "node.log").exists, 30)
    family = list_descendants(starting.pid)
    starting.send_signal(signal.SIGINT)
    output, _ = starting.communicate(timeout=60)
    assert starting.returncode == 0
    assert b"Traceback" not in output
    assert not (state / "dev.json").exists()
    wait_until(lambda: not list_survivors(family), 10)


@pytest.mark.slow
def test_models_that_do_not_fit_at_once_come_when_they_are_asked_for(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = run_hearth(
        *("models", "add", "@me/second", "--from", BUNDLED_PATH, "--store", state / "models")
    )
    assert added.returncode == 0, added.stderr
    monkeypatch.setenv("HEARTH_POOL__ENGINE__KV_BYTES", "16777216")
    monkeypatch.setenv("HEARTH_POOL__PLACEMENT__DEVICE_BYTES", "50000000")  # one of them
    monkeypatch.setenv("HEARTH_POOL__PLACEMENT__HOST_BYTES", "50000000")
    with start_dev(state) as running:
        assert running.access.models == (MODEL, "@me/second")
        assert "when they are asked for: @me/second" in running.read_output()
        assert [ask(running, model) for model in running.access.models] == [200, 200]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_served(
    state: Path, damaged: str
) -> None:
    added = run_hearth(
        *("models", "add", "@me/bad", "--from", BUNDLED_PATH, "--store", state / "models")
    )
    assert added.returncode == 0, added.stderr
    (state / "models" / "@me" / "bad" / damaged).write_bytes(b"\xff" * 1000)
    with start_dev(state) as running:
        assert running.access.models == (MODEL,)
        assert ask(running) == 200
        (line,) = [one for one in running.read_output().splitlines() if "@me/bad" in one]
        assert line.startswith("Not served: @me/bad.")
        assert damaged in line
