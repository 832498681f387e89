"""`hearth models add --keep-remote`: weights stay on the hub or on a mirror, and are noted."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.model_placement import format_memory, format_row, list_rows
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId, ModelName, NodeId, RegionId
from contracts.placement import MemoryUse, ModelPlacement, Tier
from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.weight_origin import LISTING_FILE, ORIGIN_FILE, read_origin
from tests.cli.hub_server import COMMIT, HubState, serve_hub
from tests.cli.test_models import REPOSITORY, WEIGHTS, add_from_hub, run
from tests.fixtures.mirror import Mirror, serve_mirror
from tests.fixtures.remote_model import describe_files

NAME = "@acme/small"
KEPT = ("LICENSE", "NOTICE", "tokenizer.model", "1_Pooling/config.json")
"""What comes with models beside their weights, whatever is in it."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder as a mirror serves it."""
    folder = tmp_path / "whole"
    folder.mkdir()
    for path in BUNDLED_PATH.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    for name in KEPT:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('{"pooling_mode_cls_token": true}')
    result = run("index", folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def mirror(whole: Path) -> Iterator[Mirror]:
    files = [path for path in whole.rglob("*") if path.is_file()]
    served = {path.relative_to(whole).as_posix(): path.read_bytes() for path in files}
    with serve_mirror(served) as mirror:
        yield mirror


def test_the_hubs_weights_are_noted_and_not_fetched(store: Path) -> None:
    files = {path.name: path.read_bytes() for path in BUNDLED_PATH.iterdir() if path.is_file()}
    state = HubState(REPOSITORY, files)
    with serve_hub(state) as endpoint:
        result = add_from_hub(endpoint, store, "--keep-remote")
        assert result.returncode == 0, result.stderr
        origin = read_origin(store / NAME)
        assert origin is not None
        assert origin.url == f"{endpoint}/{REPOSITORY}/resolve/{COMMIT}/"
    assert origin.files == describe_files(BUNDLED_PATH)
    assert WEIGHTS not in state.list_fetched()
    assert not (store / NAME / WEIGHTS).exists()
    assert (store / NAME / "tokenizer.json").read_bytes() == files["tokenizer.json"]


def test_a_mirrors_folder_is_added_without_its_weights(
    store: Path, whole: Path, mirror: Mirror
) -> None:
    result = run("add", NAME, "--from", mirror.url, "--keep-remote", "--store", store)
    assert result.returncode == 0, result.stderr
    origin = read_origin(store / NAME)
    assert origin is not None
    assert (origin.url, origin.files) == (mirror.url, describe_files(whole))
    assert not any(path.endswith(".safetensors") for path, _, _ in mirror.requests)
    listed = json.loads(run("list", "--json", "--store", store).stdout)
    assert NAME in [row["name"] for row in listed]
    for name in KEPT:
        assert (store / NAME / name).read_bytes() == (whole / name).read_bytes()


def rewrite(mirror: Mirror, **changes: object) -> None:
    """Changes the first file that is no weights in the mirror's listing."""
    listed = json.loads(mirror.files[LISTING_FILE])
    file = next(file for file in listed if file["name"] == "tokenizer.json")
    file.update(changes)
    mirror.files[LISTING_FILE] = json.dumps(listed).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "../tokenizer.json"}, "not the plain name"),
        ({"name": "2_Pooling/config.json"}, "not the plain name"),
        ({"name": "modeling.py"}, "which is refused"),
        ({"sha256": "0" * 64}, "is another file than"),
        ({"num_bytes": 10}, "is larger than the 10 bytes"),
        ({"num_bytes": 1 << 40}, "which is refused"),
        ({"sha256": "x"}, "matching regex"),
    ],
)
def test_a_listing_that_lies_is_one_sentence_and_adds_nothing(
    store: Path, mirror: Mirror, changes: dict[str, object], said: str
) -> None:
    rewrite(mirror, **changes)
    result = run("add", NAME, "--from", mirror.url, "--keep-remote", "--store", store)
    assert result.returncode != 0
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    assert not (store / NAME).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "https://127.0.0.1/x"), "add --keep-remote"),
        (("--from", str(BUNDLED_PATH), "--keep-remote"), "goes with --from hub:"),
        (("--from", "http://127.0.0.1:9/x", "--keep-remote"), "127.0.0.1:9"),
        (("--from", "http://me:pw@127.0.0.1/x", "--keep-remote"), "has a password"),
    ],
)
def test_what_cannot_be_added_so_is_one_sentence(
    store: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = run("add", NAME, *arguments, "--store", store)
    assert result.returncode != 0
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr


def test_a_note_beside_a_copied_folder_is_checked(store: Path, whole: Path) -> None:
    (whole / WEIGHTS).unlink()
    (whole / ORIGIN_FILE).write_text('{"url": "file:///etc", "files": []}')
    result = run("add", NAME, "--from", whole, "--store", store)
    assert result.returncode != 0
    assert ORIGIN_FILE in result.stderr


def test_status_shows_how_far_a_fetch_is_and_how_far_a_load() -> None:
    away = ModelPlacement(
        name=ModelName(NAME),
        tier=Tier.REMOTE,
        weights_bytes=1000,
        kv_bytes=0,
        fetched_bytes=410,
        is_moving=True,
    )
    coming = msgspec.structs.replace(
        away, name=ModelName(f"{NAME}-2"), tier=Tier.GPU, fetched_bytes=0, loaded_ratio=0.439
    )
    node = NodeView(
        node_id=NodeId("node-1"),
        boot_id=BootId("b"),
        region=RegionId("local"),
        jurisdiction="",
        latency_s=0.0,
        is_connected=True,
        is_draining=False,
        report_age_s=0.1,
        placements=(away, coming),
        memory=MemoryUse(disk_budget_bytes=2_000_000, disk_used_bytes=1_000_000),
    )
    view = FleetView(
        gateway_id=GatewayId("g"),
        boot_id=BootId("b"),
        region=RegionId("local"),
        unix_ms=0,
        nodes=(node,),
        demand=(),
        rules=(),
    )
    cells = [format_row(row, 0)[2] for row in list_rows(view, 0.0)]
    assert cells == ["gpu (loading, 43 %)", "remote (fetching, 41 %)"]
    assert "disk 1.0 MB of 2.0 MB" in format_memory(view)
