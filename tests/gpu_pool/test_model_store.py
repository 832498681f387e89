"""The model store: whole models or none, and nothing that could run code."""

import json
import os
from pathlib import Path

import pytest

from contracts.errors import (
    Conflict,
    InvalidModelName,
    InvalidRequest,
    NotFound,
    ServiceError,
    UnknownModel,
)
from contracts.ids import ModelName
from gpu_pool.model_store import BUNDLED_NAME, ModelStore
from tests.fixtures.random_checkpoint import write_random_checkpoint

NAME = ModelName("@test/me/llama")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_random_checkpoint(tmp_path / "source")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store", bundled_path=tmp_path / "none", unix_s=lambda: 1234.5)


def list_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_model_is_added_listed_found_and_removed(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    progress: list[tuple[int, int]] = []
    added = store.add_model(
        NAME, source, description="Small.", progress=lambda *step: progress.append(step)
    )
    assert added.path == tmp_path / "store" / "@test" / "me" / "llama"
    assert store.list_models() == [added]
    assert store.find_model(NAME) == added
    assert added.manifest.description == "Small."
    assert added.manifest.added_unix_s == 1234
    assert list_files(added.path) == sorted([*list_files(source), "hearth-model.json"])
    total = sum(path.stat().st_size for path in source.iterdir())
    assert progress[0] == (0, total)
    assert progress[-1] == (total, total)
    store.remove_model(NAME)
    assert store.list_models() == []
    assert list_files(tmp_path / "store") == []


def test_how_an_encoder_pools_comes_along_and_nothing_else_below_the_top(
    store: ModelStore, source: Path
) -> None:
    for name in ("1_Pooling/config.json", "1_Pooling/notes.json", "onnx/config.json"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text('{"pooling_mode_cls_token": true}')
    added = store.add_model(NAME, source)
    below = [path.relative_to(added.path).as_posix() for path in added.path.glob("*/*")]
    assert below == ["1_Pooling/config.json"]
    assert (added.path / below[0]).read_bytes() == (source / below[0]).read_bytes()


def test_the_bundled_model_comes_first_and_stays(tmp_path: Path, source: Path) -> None:
    store = ModelStore(tmp_path / "store", bundled_path=source)
    store.add_model(ModelName("@a/b"), source)
    assert [model.name for model in store.list_models()] == [BUNDLED_NAME, "@a/b"]
    assert store.find_model(BUNDLED_NAME).is_bundled
    with pytest.raises(Conflict):
        store.remove_model(BUNDLED_NAME)
    with pytest.raises(Conflict):
        store.add_model(BUNDLED_NAME, source)


def test_hearth_comes_with_a_model(tmp_path: Path) -> None:
    assert (ModelStore(tmp_path).find_model(BUNDLED_NAME).path / "model.safetensors").is_file()


def test_links_take_no_space(store: ModelStore, source: Path) -> None:
    added = store.add_model(NAME, source, hard_links=True)
    for name in list_files(source):
        assert (added.path / name).samefile(source / name)
    store.remove_model(NAME)
    assert (source / "model.safetensors").is_file()


def test_a_cache_of_symbolic_links_is_followed(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in source.iterdir():
        (cache / path.name).symlink_to(path)
    for hard_links in (False, True):
        added = store.add_model(NAME, cache, hard_links=hard_links)
        assert not any(path.is_symlink() for path in added.path.iterdir())
        store.remove_model(NAME)


@pytest.mark.parametrize("name", ["llama", "@a", "@a/../b", "@a//b", "@a/b/", "/etc", "@a/.b"])
def test_names_that_are_paths_are_refused(store: ModelStore, source: Path, name: str) -> None:
    with pytest.raises(InvalidModelName):
        store.add_model(ModelName(name), source)
    with pytest.raises(InvalidModelName):
        store.remove_model(ModelName(name))


def test_one_name_one_model(store: ModelStore, source: Path) -> None:
    store.add_model(NAME, source)
    for name in (NAME, "@test/me", "@test/me/llama/inner"):
        with pytest.raises(Conflict):
            store.add_model(ModelName(name), source)


@pytest.mark.parametrize("comes_first", [True, False])
def test_of_two_that_add_a_model_at_once_one_is_refused(
    comes_first: bool, store: ModelStore, source: Path, tmp_path: Path
) -> None:
    def add_another(_: Path) -> None:
        if comes_first:
            store.add_model(NAME, source, description="the first")

    if comes_first:
        with pytest.raises(Conflict, match="added meanwhile"):
            store.add_model(NAME, source, note_digests=add_another)
        assert store.find_model(NAME).manifest.description == "the first"
    else:
        store.add_model(NAME, source, note_digests=add_another)
    assert not list((tmp_path / "store").glob(".incoming-*"))


def test_what_is_not_there_is_not_found(store: ModelStore) -> None:
    with pytest.raises(UnknownModel):
        store.find_model(NAME)
    with pytest.raises(NotFound):
        store.remove_model(NAME)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_model_is_refused(store: ModelStore, source: Path, name: str) -> None:
    (source / name).unlink()
    with pytest.raises(InvalidRequest, match="safetensors" if "model" in name else name):
        store.add_model(NAME, source)


def test_pickles_are_refused_or_left_behind(store: ModelStore, source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    (source / "modeling_llama.py").write_text("import os", encoding="utf-8")
    assert "pytorch_model.bin" not in list_files(store.add_model(NAME, source).path)
    assert "modeling_llama.py" not in list_files(store.find_model(NAME).path)
    (source / "model.safetensors").unlink()
    with pytest.raises(InvalidRequest, match=r"pytorch_model\.bin may run code"):
        store.add_model(ModelName("@a/b"), source)


def test_code_that_models_name_stays_behind(store: ModelStore, source: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((source / name).read_text(encoding="utf-8"))
        content |= {"auto_map": {"AutoModel": "modeling.Model"}}
        (source / name).write_text(json.dumps(content), encoding="utf-8")
    (source / "modeling.py").write_text("raise SystemExit", encoding="utf-8")
    assert "modeling.py" not in list_files(store.add_model(NAME, source).path)


def test_an_index_may_name_only_files_that_are_there(store: ModelStore, source: Path) -> None:
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}), encoding="utf-8")
    store.add_model(NAME, source)
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}), encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"other\.safetensors"):
        store.add_model(ModelName("@a/b"), source)


class Interrupted(Exception):
    """Something that ends an addition in the middle."""


def test_an_interrupted_addition_leaves_nothing(
    store: ModelStore, source: Path, tmp_path: Path
) -> None:
    def interrupt(done: int, _: int) -> None:
        if done:
            raise Interrupted

    with pytest.raises(Interrupted):
        store.add_model(NAME, source, progress=interrupt)
    assert store.list_models() == []
    assert list_files(tmp_path / "store") == []


def test_refusals_touch_nothing(store: ModelStore, tmp_path: Path) -> None:
    for name, source in ((NAME, tmp_path / "missing"), (ModelName("no"), tmp_path)):
        with pytest.raises(ServiceError):
            store.add_model(name, source)
    assert not (tmp_path / "store").exists()
    assert os.listdir(tmp_path) == []
