"""`hearth finetunes`: an account's adapters, by the API that its own programs use.

Owns the commands' words and output; must not know how requests travel. Read next:
`cli.finetune_client`.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.account_access import find_access
from cli.finetune_client import FinetuneClient, ListedFinetune
from cli.terminal import NONE, CommandFailed, format_bytes, print_json, print_table, show_progress

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_FILES: Final = (CONFIG_FILE, WEIGHTS_FILE)

BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="Origin, such as https://hearth.example.com.")
]
AccountId = Annotated[str | None, typer.Option("--account-id", help="32 hex digits.")]
Directory = Annotated[Path, typer.Option("--dir", help="State folder of a `hearth dev`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Finetune = Annotated[
    str,
    typer.Argument(metavar="FINETUNE", help="Its name or id: `hearth finetunes list`."),
]
_HOME: Final = Path(".hearth")

app = typer.Typer(
    help="Create, upload, list and delete adapters (LoRA) that requests name in `lora`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Next to a running `hearth dev` no option is needed. Elsewhere: `--base-url`, "
    "`--account-id` and the API token in the variable `HEARTH_API_TOKEN`.",
)


@app.command("list")
def list_all(
    base_url: BaseUrl = None,
    account_id: AccountId = None,
    directory: Directory = _HOME,
    as_json: AsJson = False,
) -> None:
    """List the account's finetunes, oldest first."""
    with _open(base_url, account_id, directory) as client:
        found = client.list_all()
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "NAME", "MODEL", "READY", "RANK", "SIZE", "PUBLIC", "CREATED"),
        [_to_row(one) for one in found],
    )


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="How requests will call it.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The model that it was trained on.")],
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Upload both files of this folder, too."),
    ] = None,
    description: Annotated[str | None, typer.Option("--description", "-d")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let every account use it, by its id.")
    ] = False,
    base_url: BaseUrl = None,
    account_id: AccountId = None,
    directory: Directory = _HOME,
    as_json: AsJson = False,
) -> None:
    """Create a finetune; its files follow with `upload`, or at once with `--from`: both or nothing.

    Example: `hearth finetunes create cats -m @cf/meta/llama-3.2-1b-instruct --from ./lora`
    """
    files = [] if folder is None else _find_files(folder)
    with _open(base_url, account_id, directory) as client:
        made = client.create(name, model, description, is_public=public)
        try:
            _upload(client, made.id, files)
        except CommandFailed:
            # Its files cannot be changed: what is right in the next attempt would be refused.
            client.delete(made.id)
            raise
    done = "Created" if not files else "Created and filled"
    line = f"{done} finetune {made.id} ({made.name})."
    _report(as_json, {"id": made.id, "name": made.name}, line)


@app.command("upload")
def upload(
    finetune: Finetune,
    path: Annotated[
        Path,
        typer.Argument(help=f"A folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or one of these."),
    ],
    base_url: BaseUrl = None,
    account_id: AccountId = None,
    directory: Directory = _HOME,
    as_json: AsJson = False,
) -> None:
    """Upload a finetune's files, which cannot be changed afterwards.

    Example: `hearth finetunes upload cats ./lora`
    """
    files = _find_files(path) if path.is_dir() else [_check_name(path)]
    with _open(base_url, account_id, directory) as client:
        _upload(client, finetune, files)
    names = [file.name for file in files]
    _report(
        as_json,
        {"finetune": finetune, "files": names},
        f"Uploaded {' and '.join(names)} to {finetune}.",
    )


@app.command("delete")
def delete(
    finetune: Finetune,
    base_url: BaseUrl = None,
    account_id: AccountId = None,
    directory: Directory = _HOME,
    as_json: AsJson = False,
) -> None:
    """Delete a finetune with its files; requests that name it are refused within two seconds."""
    with _open(base_url, account_id, directory) as client:
        finetune_id = client.delete(finetune)
    _report(as_json, {"id": finetune_id}, f"Deleted finetune {finetune_id}.")


def _open(base_url: str | None, account_id: str | None, directory: Path) -> FinetuneClient:
    return FinetuneClient(find_access(base_url, account_id, directory))


def _find_files(folder: Path) -> list[Path]:
    """Both files, the small one first: what is wrong with it is said before the other is sent.

    Raises: `CommandFailed` when one is missing.
    """
    files = [folder / name for name in _FILES]
    for file in files:
        if not file.is_file():
            raise CommandFailed(f"There is no {file}.")
    return files


def _check_name(file: Path) -> Path:
    """Raises: `CommandFailed` for a file that is none of the two."""
    if file.name not in _FILES:
        raise CommandFailed(f"{file} is neither called {CONFIG_FILE} nor {WEIGHTS_FILE}.")
    return file


def _upload(client: FinetuneClient, name: str, files: list[Path]) -> None:
    """Uploads these with a bar for each."""
    for file in files:
        with show_progress(file.name) as report:
            client.upload(name, file, report)


def _report(as_json: bool, value: Any, line: str) -> None:
    if as_json:
        print_json(value)
    else:
        print(line)


def _to_row(one: ListedFinetune) -> tuple[str, ...]:
    """A line of the table."""
    return (
        one.id,
        one.name,
        one.model,
        "yes" if one.ready else "no",
        NONE if one.rank is None else str(one.rank),
        NONE if one.num_bytes is None else format_bytes(one.num_bytes),
        "yes" if one.public else "no",
        one.created_at,
    )
