"""`hearth models` on real folders and against a hub on a local socket."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.terminal import format_bytes
from gpu_pool.model_store import BUNDLED_NAME, BUNDLED_PATH, ModelStore
from gpu_pool.weights.packed_file import COPY_FILE
from tests.cli.hub_server import COMMIT, HubState, serve_hub
from tests.gpu_pool.kernels.cpu.native_levels import NAMES
from tests.gpu_pool.tiny_llama import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "acme/small"
WEIGHTS = "model.safetensors"
CHUNK_BYTES = 10 * 1024 * 1024
"""What the hub's library writes at a time; a shorter beginning is lost with the connection."""


def create_weights() -> bytes:
    """More than one chunk, in one tensor."""
    num_bytes = CHUNK_BYTES * 7 // 6
    entry = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"a": entry}).encode()
    return (
        struct.pack("<Q", len(header))
        + header
        + (bytes(range(256)) * (num_bytes // 256 + 1))[:num_bytes]
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def hub() -> HubState:
    files = {path.name: path.read_bytes() for path in BUNDLED_PATH.iterdir()}
    files[WEIGHTS] = create_weights()
    extras = {
        "pytorch_model.bin": b"pickled",
        "modeling.py": b"print('no')",
        "README.md": b"# Small",
        "original/model.safetensors": b"another copy",
    }
    return HubState(REPOSITORY, {**files, **extras})


@pytest.fixture
def endpoint(hub: HubState) -> Iterator[str]:
    with serve_hub(hub) as endpoint:
        yield endpoint


def run(*arguments: object, endpoint: str = "") -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"}
    return subprocess.run(
        [sys.executable, "-m", "cli", "models", *map(str, arguments)],
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
        cwd=ROOT,
        env=environ,
    )


def add_from_hub(endpoint: str, store: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    source = f"hub:{REPOSITORY}"
    return run("add", "@acme/small", "--from", source, "--store", store, *more, endpoint=endpoint)


def list_ranges(hub: HubState) -> list[str | None]:
    """The Range header of every request for the weights."""
    return [header for _, path, header in hub.requests if path.endswith(f"/{WEIGHTS}")]


def test_a_folder_is_added_listed_and_removed(store: Path) -> None:
    added = run("add", "@me/copy", "--from", BUNDLED_PATH, "--description", "A", "--store", store)
    assert added.returncode == 0, added.stderr
    listed = json.loads(run("list", "--json", "--store", store).stdout)
    assert [row["name"] for row in listed] == [BUNDLED_NAME, "@me/copy"]
    assert listed[1]["description"] == "A"
    assert listed[1]["num_bytes"] >= listed[0]["num_bytes"]
    assert "@me/copy" in run("list", "--store", store).stdout
    assert run("remove", "@me/copy", "--store", store).returncode == 0
    assert [model.name for model in ModelStore(store).list_models()] == [BUNDLED_NAME]


def test_the_bundled_model_cannot_be_removed(store: Path) -> None:
    result = run("remove", BUNDLED_NAME, "--store", store)
    assert result.returncode == 1
    assert "comes with Hearth" in result.stderr


def test_a_repository_is_fetched_without_what_could_run_code(
    hub: HubState, endpoint: str, store: Path
) -> None:
    result = add_from_hub(endpoint, store, "--json")
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout)
    present = {path.name: path.read_bytes() for path in Path(row["path"]).iterdir()}
    del present["hearth-model.json"], present["hearth-digests.json"]
    wanted = {path.name for path in BUNDLED_PATH.iterdir()}
    assert set(hub.list_fetched()) == wanted
    assert present == {name: hub.files[name] for name in wanted}
    assert row["description"] == f"hub:{REPOSITORY} at {COMMIT[:12]}"
    assert [path.name for path in store.rglob("*") if path.suffix == ".partial"] == []


def test_a_broken_connection_goes_on_where_it_stopped(
    hub: HubState, endpoint: str, store: Path
) -> None:
    hub.breaks[WEIGHTS] = CHUNK_BYTES + 1000
    result = add_from_hub(endpoint, store)
    assert result.returncode == 0, result.stderr
    assert list_ranges(hub) == [None, f"bytes={CHUNK_BYTES}-"]


def test_a_second_try_does_not_fetch_again_what_is_there(
    hub: HubState, endpoint: str, store: Path
) -> None:
    folder = store / ".downloads" / "acme--small" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes((BUNDLED_PATH / "config.json").read_bytes())
    (folder / f"{WEIGHTS}.partial").write_bytes(create_weights()[:1_000_000])
    result = add_from_hub(endpoint, store)
    assert result.returncode == 0, result.stderr
    assert "config.json" not in hub.list_fetched()
    assert list_ranges(hub) == ["bytes=1000000-"]
    assert not folder.exists()


def test_damaged_weights_are_refused_and_the_next_try_is_clean(endpoint: str, store: Path) -> None:
    folder = store / ".downloads" / "acme--small" / COMMIT
    folder.mkdir(parents=True)
    (folder / f"{WEIGHTS}.partial").write_bytes(b"x" * 1_000_000)
    damaged = add_from_hub(endpoint, store)
    assert damaged.returncode == 1
    assert "SHA-256" in damaged.stderr
    assert add_from_hub(endpoint, store).returncode == 0


@pytest.mark.parametrize(
    ("source", "more", "sentence"),
    [
        ("hub:acme/other", (), "not on the hub"),
        ("hub:acme/small", ("--revision", "nope"), "no revision nope"),
        ("hub:acme", (), "hub:OWNER/REPO"),
        ("hub:../../etc", (), "hub:OWNER/REPO"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(
    endpoint: str, store: Path, source: str, more: tuple[str, ...], sentence: str
) -> None:
    result = run("add", "@a/b", "--from", source, "--store", store, *more, endpoint=endpoint)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_a_gated_repository_says_what_to_do(hub: HubState, endpoint: str, store: Path) -> None:
    hub.is_gated = True
    result = add_from_hub(endpoint, store)
    assert result.returncode == 1
    assert "accept its terms" in result.stderr


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(
    hub: HubState, endpoint: str, store: Path
) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickled"}
    result = add_from_hub(endpoint, store)
    assert result.returncode == 1
    assert "safetensors" in result.stderr
    assert hub.list_fetched() == []


def test_an_architecture_that_cannot_be_computed_is_refused_before_its_weights_are_fetched(
    hub: HubState, endpoint: str, store: Path
) -> None:
    config = json.loads(hub.files["config.json"]) | {"architectures": ["MambaForCausalLM"]}
    hub.files["config.json"] = json.dumps(config).encode()
    result = add_from_hub(endpoint, store)
    assert result.returncode == 1
    assert "MambaForCausalLM" in result.stderr
    assert "LlamaForCausalLM" in result.stderr
    assert WEIGHTS not in hub.list_fetched()


def test_a_folder_of_another_architecture_is_refused(tmp_path: Path, store: Path) -> None:
    source = Path(shutil.copytree(BUNDLED_PATH, tmp_path / "other"))
    config = json.loads((source / "config.json").read_bytes()) | {"architectures": ["Other"]}
    (source / "config.json").write_text(json.dumps(config))
    result = run("add", "@a/b", "--from", source, "--store", store)
    assert result.returncode == 1
    assert "LlamaForCausalLM" in result.stderr
    assert [model.name for model in ModelStore(store).list_models()] == [BUNDLED_NAME]


def test_a_hub_that_cannot_be_reached_is_one_sentence(store: Path) -> None:
    result = add_from_hub("http://127.0.0.1:9", store)
    assert result.returncode == 1
    assert "Fetching acme/small failed" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_the_extra_the_message_says_how_to_install_it(tmp_path: Path) -> None:
    # A package of that name that cannot be imported stands for one that is not installed.
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError")
    result = subprocess.run(
        [sys.executable, "-m", "cli", "models", "add", "@a/b", "--from", "hub:a/b"],
        capture_output=True,
        check=False,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 1
    assert "pip install 'hearth[hub]'" in result.stderr


def test_sizes_read_well() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5_000_000_000)
    assert [format_bytes(size) for size in sizes] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB"]


def test_a_model_that_is_added_is_prepared_for_this_machines_cpu(
    tmp_path: Path, store: Path
) -> None:
    has_gpu = torch.cuda.is_available()
    # 72 MB: the copies of smaller models would not be worth their room.
    source = tmp_path / "source"
    shutil.copytree(BUNDLED_PATH, source, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"vocab_size": 140_000, "hidden_size": 256, "num_hidden_layers": 1}
    write_tiny_llama(source, dtype=torch.bfloat16, **sizes)
    added = run("add", "@me/large", "--from", source, "--store", store, "--json")
    assert added.returncode == 0, added.stderr
    assert json.loads(added.stdout)["name"] == "@me/large"
    is_needed = bool(NAMES) and not has_gpu
    assert ("Preparing: " in added.stderr) == is_needed
    assert (store / "@me/large" / COPY_FILE).is_file() == is_needed
    # What is said of its size is what the list says afterwards, the copy included.
    listed = json.loads(run("list", "--store", store, "--json").stdout)
    assert json.loads(added.stdout) in listed
    left = run("add", "@me/left", "--from", source, "--store", store, "--no-prepare")
    assert left.returncode == 0, left.stderr
    assert "Preparing: " not in left.stderr
    assert not (store / "@me/left" / COPY_FILE).exists()
