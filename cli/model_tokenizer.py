"""Makes the `tokenizer.json` of a model that comes with ranks instead (Kimi's `tiktoken.model`).

Owns the progress bar and where the file is put; how it is made is the text side's.
Read next: `gpu_pool.server.text.kimi_tokenizer`, `cli.models`.
"""

from pathlib import Path

from cli.terminal import CommandFailed, show_progress


def convert_tokenizer(folder: Path) -> bytes | None:
    """The content of `tokenizer.json`, or None where `folder` has one, or nothing to make it of.

    Raises: `InvalidRequest` that says what is wrong with the file of ranks.
    """
    from gpu_pool.server.text.kimi_tokenizer import create_tokenizer_json, is_convertible

    if not is_convertible(folder):
        return None
    with show_progress("Converting the tokenizer") as progress:
        return create_tokenizer_json(folder, progress)


def place_tokenizer(folder: Path) -> None:
    """Puts the file into `folder` itself: whole or not at all, and never over one that is there.

    Raises: `CommandFailed` where nothing can be written, `InvalidRequest` as `convert_tokenizer`.
    """
    from gpu_pool.server.text.kimi_tokenizer import TOKENIZER_FILE, is_convertible

    content = convert_tokenizer(folder)
    if content is None:
        return
    incoming = folder / f".{TOKENIZER_FILE}.partial"
    try:
        incoming.write_bytes(content)
        if is_convertible(folder):  # nobody else has put one there meanwhile
            incoming.rename(folder / TOKENIZER_FILE)
        incoming.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"{folder} needs a `{TOKENIZER_FILE}`, which cannot be written there "
            f"({error.strerror or error}). Use a copy of the folder that you may write to."
        ) from error
