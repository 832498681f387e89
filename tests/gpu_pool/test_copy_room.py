"""What packed copies may take beside fetched weights: never more than the budget leaves."""

from pathlib import Path

import pytest

from contracts.ids import ModelName
from gpu_pool.copy_room import share_copy_room
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.weight_origin import ORIGIN_FILE, OriginFile, WeightOrigin, write_origin


@pytest.fixture
def models(tmp_path: Path) -> list[ServedModelSettings]:
    """Two that were fetched, of 300 and 100 bytes, one of them under two names, and one's own."""
    folders = [tmp_path / name for name in ("large", "small", "own")]
    for folder, num_bytes in zip(folders, (300, 100, None), strict=True):
        folder.mkdir()
        if num_bytes is not None:
            file = OriginFile(name="model.safetensors", num_bytes=num_bytes, sha256="0" * 64)
            write_origin(folder, WeightOrigin(url="https://mirror.example/model", files=(file,)))
    return [
        ServedModelSettings(name=ModelName(f"@hearth/test/m{i}"), path=folder)
        for i, folder in enumerate([*folders, folders[0]])
    ]


def test_without_a_budget_the_drive_alone_decides(models: list[ServedModelSettings]) -> None:
    assert share_copy_room(models, None) == {}


@pytest.mark.parametrize("disk_bytes", [0, 100, 400, 401, 600, 10_000])
def test_files_and_copies_together_keep_to_the_budget(
    models: list[ServedModelSettings], disk_bytes: int
) -> None:
    room = share_copy_room(models, disk_bytes)
    assert room.keys() == {models[0].path, models[1].path}  # nobody fetches one's own again
    assert min(room.values()) >= 0
    assert sum(room.values()) + 400 <= max(disk_bytes, 400)


def test_what_is_left_is_shared_by_size(models: list[ServedModelSettings]) -> None:
    assert list(share_copy_room(models, 800).values()) == [300, 100]


def test_a_model_that_is_refused_stops_no_other(models: list[ServedModelSettings]) -> None:
    (models[1].path / ORIGIN_FILE).write_text("{")
    assert share_copy_room(models, 800) == {models[0].path: 500}
