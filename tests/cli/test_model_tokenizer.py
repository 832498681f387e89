"""`hearth models add` and `index` on models whose tokenizer comes as ranks (Kimi)."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gpu_pool.model_store import BUNDLED_PATH
from gpu_pool.weight_origin import LISTING_FILE
from tests.cli.hub_server import HubState, serve_hub
from tests.cli.test_models import REPOSITORY, WEIGHTS, add_from_hub, run
from tests.fixtures.rank_file import name_special, train_tokens, write_options, write_ranks

TEXT = "The engine's user said: 你好，世界 2024<|im_end|>"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model as Kimi's are laid out."""
    folder = Path(shutil.copytree(BUNDLED_PATH, tmp_path / "source"))
    (folder / "tokenizer.json").unlink()
    write_ranks(folder, train_tokens())
    write_options(folder, name_special(len(train_tokens())), chat_template="{{ messages }}")
    return folder


def refuse(folder: Path) -> str:
    """Makes the file of ranks one that is refused; the sentence says so."""
    path = folder / "tiktoken.model"
    path.write_bytes(path.read_bytes().replace(b"YQ== 97\n", b"YQ== 98\n"))
    return "line 99: two tokens have rank 98"


def is_whole(path: Path) -> bool:
    """True for a tokenizer that gives the text back, with its special token."""
    tokenizer = Tokenizer.from_file(str(path))
    ids = tokenizer.encode(TEXT).ids
    has_end = len(train_tokens()) + 2 in ids
    return has_end and tokenizer.decode(ids, skip_special_tokens=False) == TEXT


def test_a_folder_is_converted_where_it_is_copied_to(source: Path, store: Path) -> None:
    before = sorted(path.name for path in source.iterdir())
    result = run("add", "@moonshot/kimi", "--from", source, "--store", store)
    assert result.returncode == 0, result.stderr
    assert "Converting the tokenizer" in result.stderr
    assert is_whole(store / "@moonshot" / "kimi" / "tokenizer.json")
    assert sorted(path.name for path in source.iterdir()) == before


def test_a_tokenizer_that_is_there_is_left_as_it_is(source: Path, store: Path) -> None:
    shutil.copy(BUNDLED_PATH / "tokenizer.json", source)
    result = run("add", "@moonshot/kimi", "--from", source, "--store", store)
    assert result.returncode == 0, result.stderr
    assert "Converting" not in result.stderr
    added = store / "@moonshot" / "kimi" / "tokenizer.json"
    assert added.read_bytes() == (BUNDLED_PATH / "tokenizer.json").read_bytes()
    assert run("index", source).returncode == 0
    assert (source / "tokenizer.json").read_bytes() == added.read_bytes()


def test_a_damaged_file_of_ranks_leaves_nothing(source: Path, store: Path) -> None:
    sentence = refuse(source)
    result = run("add", "@moonshot/kimi", "--from", source, "--store", store)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert not store.exists()


@pytest.mark.parametrize("more", [(), ("--keep-remote",)])
def test_what_the_hub_has_is_fetched_and_converted(
    source: Path, store: Path, more: tuple[str, ...]
) -> None:
    hub = HubState(REPOSITORY, {path.name: path.read_bytes() for path in source.iterdir()})
    with serve_hub(hub) as endpoint:
        result = add_from_hub(endpoint, store, *more)
    assert result.returncode == 0, result.stderr
    assert is_whole(store / "@acme" / "small" / "tokenizer.json")
    assert hub.list_fetched().count("tiktoken.model") == 1


def test_of_a_hub_that_has_a_tokenizer_no_ranks_are_fetched(source: Path, store: Path) -> None:
    shutil.copy(BUNDLED_PATH / "tokenizer.json", source)
    hub = HubState(REPOSITORY, {path.name: path.read_bytes() for path in source.iterdir()})
    with serve_hub(hub) as endpoint:
        result = add_from_hub(endpoint, store)
    assert result.returncode == 0, result.stderr
    assert "tiktoken.model" not in hub.list_fetched()
    assert "tokenizer.json" in hub.list_fetched()


def test_damaged_ranks_on_the_hub_are_refused_before_weights_are_fetched(
    source: Path, store: Path
) -> None:
    sentence = refuse(source)
    hub = HubState(REPOSITORY, {path.name: path.read_bytes() for path in source.iterdir()})
    with serve_hub(hub) as endpoint:
        result = add_from_hub(endpoint, store)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert WEIGHTS not in hub.list_fetched()


def test_a_folder_for_a_mirror_is_converted_in_its_place(source: Path) -> None:
    result = run("index", source)
    assert result.returncode == 0, result.stderr
    assert is_whole(source / "tokenizer.json")
    listed = {file["name"] for file in json.loads((source / LISTING_FILE).read_bytes())}
    assert "tokenizer.json" in listed
    assert "tiktoken.model" not in listed
    assert not list(source.glob(".*"))


def test_a_folder_that_cannot_be_written_is_one_sentence(source: Path) -> None:
    (source / ".tokenizer.json.partial").mkdir()  # in the way of root, too
    result = run("index", source)
    assert result.returncode == 1
    assert "cannot be written there (Is a directory)" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (source / "tokenizer.json").exists()
