"""Settings as the commands find them: a TOML file, then the environment.

The one reader of every process's settings, for processes are started by commands.
Owns reading both, and the form `NAME_FILE`, which takes a value from a file (a mounted secret);
must not know what the settings mean. Read next: `contracts.settings`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cli.dev.home import DevHome
from cli.operator_options import DEFAULT_DIRECTORY
from cli.terminal import CommandFailed
from contracts.settings import decode_settings, list_option_names

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

_FILE_SUFFIX: Final = "_FILE"


def read_settings(
    kind: type[SettingsT], config: Path | None, prefix: str, environ: Mapping[str, str]
) -> SettingsT:
    """Settings of `kind` from `config` (none: the defaults), overridden by `environ`.

    Raises: `CommandFailed` when a file cannot be read, `SettingsError` for its content.
    """
    table = {} if config is None else _read_table(config)
    return decode_settings(kind, table, resolve_file_variables(kind, prefix, environ), prefix)


def find_dev_settings() -> Path | None:
    """The settings that the `hearth dev` of this folder has written for its gateway, if it has."""
    written = DevHome(DEFAULT_DIRECTORY).gateway_settings
    return written if written.is_file() else None


def resolve_file_variables(
    kind: type[msgspec.Struct], prefix: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """`environ` with `PREFIX__SECTION__FIELD_FILE=path` turned into the field's own variable.

    A variable that is an option's own name, such as `…__KEY_RING__FILE`, stays what it is.
    Raises: `CommandFailed` when a named file cannot be read.
    """
    # A list of sections is one variable, as JSON: `nodes[].url` is set through `…__NODES`.
    names = {option.partition("[]")[0] for option in list_option_names(kind)}
    options = {f"{prefix}__{name.replace('.', '__')}".upper() for name in names}
    result: dict[str, str] = {}
    for name, value in environ.items():
        target = name.removesuffix(_FILE_SUFFIX)
        if name.endswith(_FILE_SUFFIX) and name not in options and target in options:
            result[target] = _read_text(Path(value)).strip()
        else:
            result[name] = value
    return result


def _read_table(config: Path) -> dict[str, object]:
    """The TOML table in `config`. Raises: `CommandFailed`."""
    try:
        return tomllib.loads(_read_text(config))
    except tomllib.TOMLDecodeError as error:
        raise CommandFailed(f"{config} is not valid TOML: {error}.") from error


def _read_text(path: Path) -> str:
    """The text in `path`. Raises: `CommandFailed`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not text: {error}.") from error
