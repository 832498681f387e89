"""`hearth models`: the models on this machine.

Owns the commands' words and progress bars; what may be added is the model store's decision.
Read next: `gpu_pool.model_store`, `cli.hub_download`.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli.model_placement import add_placement_commands
from cli.model_preparation import prepare_model
from cli.model_tokenizer import convert_tokenizer, place_tokenizer
from cli.terminal import CommandFailed, format_bytes, print_json, show_progress
from contracts.ids import ModelName
from gpu_pool.weight_origin import LISTING_FILE

if TYPE_CHECKING:
    from gpu_pool.model_store import ModelStore, StoredModel

HUB_PREFIX: Final = "hub:"
MIRROR_PREFIXES: Final = ("https://", "http://")
CONFIGURATION_FILES: Final = frozenset({"config.json", "generation_config.json"})
RANK_FILES: Final = frozenset({"tiktoken.model", "tokenizer_config.json"})
"""What a tokenizer is made of that comes as ranks."""

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="As clients name it, such as @cf/meta/llama-3.2-1b-instruct."
    ),
]
StoreOption = Annotated[
    Path, typer.Option("--store", help="Folder of the models; `hearth dev` looks in this one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DEFAULT_STORE: Final = Path(".hearth/models")

app = typer.Typer(
    help="Add, list and remove the models on this machine; see and move those of a running fleet.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


add_placement_commands(app)


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model as `--json` prints it."""

    name: str
    path: str
    source: str
    description: str
    is_bundled: bool
    num_bytes: int


@app.command("add")
def add(
    name: NameArgument,
    source: Annotated[
        str,
        typer.Option(
            "--from", help="A folder, hub:OWNER/REPO or https://MIRROR/FOLDER.", metavar="SOURCE"
        ),
    ],
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None,
    description: Annotated[
        str, typer.Option("--description", help="For people who look at the model list.")
    ] = "",
    keeps_remote: Annotated[
        bool,
        typer.Option(
            "--keep-remote", help="Leave the weights where they are: nodes fetch what is wanted."
        ),
    ] = False,
    is_prepared: Annotated[
        bool,
        typer.Option(
            "--prepare/--no-prepare",
            help="On a machine without a GPU, keep the weights packed for its CPU as well.",
        ),
    ] = True,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Add a model: configuration, tokenizer and safetensors weights.

    With `--keep-remote` only the first two are brought, and of the weights sizes and digests are
    noted. The source is the hub, or a web server with a folder that `hearth models index` has
    listed.

    A download that was interrupted goes on where it stopped when the same command runs again.

    A model of an architecture that Hearth cannot compute is refused. Where there is a
    `tiktoken.model` (Kimi) and no `tokenizer.json`, the one is made of the other.

    Weights of 64 MiB and more are packed for this machine's CPU, unless it has a GPU: the model's
    first start is as quick as later ones then, and the folder twice as large. `--no-prepare` leaves
    that to the first start.

    Examples: `hearth models add @cf/meta/llama-3.2-1b-instruct
    --from hub:meta-llama/Llama-3.2-1B-Instruct`,
    `hearth models add @me/tuned --from ./checkpoints/final`,
    `hearth models add @me/large --from https://mirror.example/models/large --keep-remote`
    """
    from gpu_pool.model_store import ModelStore

    models = ModelStore(store)
    if source.startswith(HUB_PREFIX):
        repository = source.removeprefix(HUB_PREFIX)
        model = _add_from_hub(
            models, store, ModelName(name), repository, revision, description, keeps_remote
        )
    elif revision is not None:
        raise CommandFailed("--revision goes with --from hub:OWNER/REPO only.")
    elif source.startswith(MIRROR_PREFIXES):
        if not keeps_remote:
            raise CommandFailed("Weights of a mirror are fetched by nodes: add --keep-remote.")
        model = _add_from_mirror(models, store, ModelName(name), source, description)
    elif keeps_remote:
        raise CommandFailed("--keep-remote goes with --from hub:OWNER/REPO or https://… only.")
    else:
        model = _add_from_folder(models, ModelName(name), Path(source), description)
    if is_prepared and not keeps_remote:
        prepare_model(model.path)
    row = describe(model)
    if as_json:
        print_json(row)
        return
    print(f"Added {row.name} ({format_bytes(row.num_bytes)}) in {row.path}.")
    print("A running `hearth dev` serves it after its next start.")


@app.command("index")
def index(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model's files.")],
    as_json: JsonOption = False,
) -> None:
    """List a model's files with sizes and digests, for a web server to serve them from FOLDER.

    A `tokenizer.json` that is still to be made of `tiktoken.model` (Kimi) is put beside it.

    Example: `hearth models index ./checkpoints/final`, and on each node's machine
    `hearth models add @me/tuned --from https://mirror.example/final --keep-remote`
    """
    from cli.remote_models import list_for_mirror

    place_tokenizer(folder)
    listed = list_for_mirror(folder)
    if as_json:
        print_json(listed)
        return
    total = format_bytes(sum(file.num_bytes for file in listed))
    print(f"Listed {len(listed)} files ({total}) in {folder / LISTING_FILE}.")


@app.command("list")
def list_all(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the models that a node on this machine can serve."""
    from cli.terminal import print_table
    from gpu_pool.model_store import ModelStore

    rows = [describe(model) for model in ModelStore(store).list_models()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("NAME", "SIZE", "PATH", "DESCRIPTION"),
        [(row.name, format_bytes(row.num_bytes), row.path, row.description) for row in rows],
    )


@app.command("remove")
def remove(name: NameArgument, store: StoreOption = DEFAULT_STORE) -> None:
    """Remove a model that was added, with its files."""
    from gpu_pool.model_store import ModelStore

    ModelStore(store).remove_model(ModelName(name))
    print(f"Removed {name}.")


def refuse_unsupported(folder: Path) -> None:
    """Raises: `CommandFailed` when the engine cannot compute the model in `folder`.

    Without a configuration nothing is said here: the model store asks for it.
    """
    from gpu_pool.models.errors import CheckpointError
    from gpu_pool.weights.config import read_config

    if not (folder / "config.json").is_file():
        return
    try:
        read_config(folder)
    except CheckpointError as error:
        raise CommandFailed(f"Hearth cannot serve this model. {error}") from error


def note_digests(folder: Path) -> None:
    """Notes what the weights are. Raises: `CommandFailed` when they cannot be read."""
    from gpu_pool.models.errors import CheckpointError
    from gpu_pool.weights import guard

    try:
        guard.note_digests(folder)
    except CheckpointError as error:
        reason = str(error).replace(f"{folder}/", "")  # a place that is gone when this is read
        raise CommandFailed(f"Hearth cannot serve this model. {reason}") from error


def describe(model: "StoredModel") -> ModelRow:
    """What is printed of `model`."""
    return ModelRow(
        name=model.name,
        path=str(model.path),
        source=model.manifest.source,
        description=model.manifest.description,
        is_bundled=model.is_bundled,
        num_bytes=sum(file.stat().st_size for file in model.path.iterdir() if file.is_file()),
    )


def _add_from_folder(
    models: "ModelStore", name: ModelName, source: Path, description: str
) -> "StoredModel":
    """The model, copied."""
    refuse_unsupported(source)
    tokenizer = convert_tokenizer(source)
    with show_progress("Copying") as progress:
        return models.add_model(
            name,
            source,
            description=description,
            progress=progress,
            note_digests=note_digests,
            tokenizer=tokenizer,
        )


def _add_from_hub(
    models: "ModelStore",
    store: Path,
    name: ModelName,
    repository: str,
    revision: str | None,
    description: str,
    keeps_remote: bool,
) -> "StoredModel":
    """The model, fetched into a folder beside the store's models and moved in from there."""
    from cli.hub_download import download_snapshot, find_snapshot
    from cli.remote_models import note_hub_weights
    from gpu_pool.model_store import ignore_digests

    snapshot = find_snapshot(repository, revision)
    folder = store / ".downloads" / repository.replace("/", "--") / snapshot.commit
    download_snapshot(snapshot.narrow_to(CONFIGURATION_FILES), folder, lambda _done, _total: None)
    refuse_unsupported(folder)  # before the weights, which may take an hour
    download_snapshot(snapshot.narrow_to(RANK_FILES), folder, lambda _done, _total: None)
    tokenizer = convert_tokenizer(folder)
    if keeps_remote:
        note_hub_weights(snapshot, folder)
        small = {file.name for file in snapshot.files if not file.name.endswith(".safetensors")}
        snapshot = snapshot.narrow_to(small)
    with show_progress(f"Fetching {repository}") as progress:
        download_snapshot(snapshot, folder, progress)
    origin = f"{HUB_PREFIX}{repository} at {snapshot.commit[:12]}"
    model = models.add_model(
        name,
        folder,
        description=description or origin,
        hard_links=True,
        note_digests=ignore_digests if keeps_remote else note_digests,
        tokenizer=tokenizer,
    )
    shutil.rmtree(folder)
    return model


def _add_from_mirror(
    models: "ModelStore", store: Path, name: ModelName, url: str, description: str
) -> "StoredModel":
    """The model, whose weights a web server keeps."""
    from cli.remote_models import fetch_from_mirror

    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mirror-", dir=store) as directory:
        folder = Path(directory)
        fetch_from_mirror(url, folder)
        refuse_unsupported(folder)
        return models.add_model(name, folder, description=description or url, hard_links=True)
