"""The directory of KV files when others are at it: whoever empties it, and nodes that share it."""

import shutil
from pathlib import Path

import pytest
import structlog

from gpu_pool.kv.tiers.file_tier import name_model_folder, remove_strangers
from tests.gpu_pool.kv.tiers.blocks import blank, create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.test_file_tier import list_files, open_tier


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_directory_that_is_emptied_meanwhile_is_made_anew(tmp_path: Path, depth: int) -> None:
    """All of it, of the model or of the layout; and it is nobody else's after it, either."""
    space, path = create_space(), tmp_path / "kv"
    old, new = name_blocks(space, 2)
    with open_tier(path) as tier, structlog.testing.capture_logs() as lines:
        assert tier.keep(space, old, fill(1))
        (file,) = list_files(path)
        shutil.rmtree(file.parents[3 - depth])
        assert not tier.fetch(space, old, blank())
        for name in (new, old):
            assert tier.keep(space, name, fill(2))
            target = blank()
            assert tier.fetch(space, name, target)
            assert target == fill(2)
        with pytest.raises(BlockingIOError), open_tier(path):
            pass
        assert all(found.stat().st_mode & 0o077 == 0 for found in path.rglob("*"))
    assert lines == []
    with open_tier(path) as tier:
        assert tier.has(space, new)


def test_a_directory_that_another_process_has_taken_meanwhile_stays_that_ones(
    tmp_path: Path,
) -> None:
    space = create_space()
    first, second = name_blocks(space, 2)
    with open_tier(tmp_path) as tier:
        assert tier.keep(space, first, fill(1))
        shutil.rmtree(tmp_path / name_model_folder("model"))
        with open_tier(tmp_path, layout=bytes(16)) as other:
            assert not tier.keep(space, second, fill(1))
            assert tier.books.is_off
            assert other.keep(space, second, fill(1))


def test_what_another_process_uses_is_no_strangers(tmp_path: Path) -> None:
    """Two nodes with other models that were given the same path by mistake."""
    space = create_space()
    (name,) = name_blocks(space, 1)
    with open_tier(tmp_path, model="other") as other, structlog.testing.capture_logs() as lines:
        assert other.keep(space, name, fill(1))
        remove_strangers(tmp_path, ["model"])
        assert other.fetch(space, name, blank())
    assert len(lines) == 1
    remove_strangers(tmp_path, ["model"])
    assert list(tmp_path.iterdir()) == [], "the control: nobody has it any more"
