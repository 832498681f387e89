"""Typed settings from a TOML table and environment variables, decoded without any I/O.

Composition roots read the file and the environment and hand both over. An override is named
`PREFIX__SECTION__FIELD`, such as `HEARTH_GATEWAY__LISTEN__PORT=8787`; unknown names are errors.
Must not know which settings exist: each process owns its own struct.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)
_SEPARATOR: Final = "__"


class Secret:
    """A string that cannot be printed, logged or encoded by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Wraps `value`."""
        self._value = value

    def reveal(self) -> str:
        """The value itself; call it where it is used, not before."""
        return self._value

    def __repr__(self) -> str:
        """A fixed text."""
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        """Equal values, for comparing settings in tests."""
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        """Hash of the value."""
        return hash(self._value)


class SettingsError(ValueError):
    """A setting is unknown, missing or of a wrong type; the message names it."""


def decode_settings(
    kind: type[SettingsT], table: Mapping[str, Any], environ: Mapping[str, str], prefix: str
) -> SettingsT:
    """Settings of `kind` from `table`, overridden by the variables that start with `prefix__`.

    Raises: `SettingsError`.
    """
    merged = _copy_table(table)
    for name, value in sorted(environ.items()):
        if name.startswith(prefix + _SEPARATOR):
            keys = name[len(prefix) + len(_SEPARATOR) :].lower().split(_SEPARATOR)
            _override(merged, keys, value, name)
    _refuse_unknown(kind, merged, "")
    try:
        return msgspec.convert(merged, kind, strict=False, dec_hook=_decode_hook)
    except msgspec.ValidationError as error:
        raise SettingsError(f"Settings: {error}") from error


def list_option_names(kind: type[msgspec.Struct], prefix: str = "") -> tuple[str, ...]:
    """Every option of `kind` as `section.field` or `sections[].field`, sorted.

    A test freezes this list.
    """
    names: list[str] = []
    for field in msgspec.structs.fields(kind):
        section, items = _find_struct(field.type), _find_item_struct(field.type)
        if section is not None:
            names.extend(list_option_names(section, f"{prefix}{field.encode_name}."))
        elif items is not None:
            names.extend(list_option_names(items, f"{prefix}{field.encode_name}[]."))
        else:
            names.append(prefix + field.encode_name)
    return tuple(sorted(names))


def require_distinct(what: str, names: Iterable[str]) -> None:
    """Raises: `ValueError` for a name that comes twice among those of `what`: which one of the two
    sections was meant, nobody could say.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} `{name}` is listed twice.")
        seen.add(name)


def _copy_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested tables that can be overridden without touching the caller's."""
    return {
        key: _copy_table(typing.cast("Mapping[str, Any]", value))
        if isinstance(value, Mapping)
        else value
        for key, value in table.items()
    }


def _override(table: dict[str, Any], keys: list[str], value: str, name: str) -> None:
    """Sets `table[keys…] = value`; text that reads as JSON array or object becomes one."""
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError(f"{name}: `{key}` is a value, not a section.")
    if value.startswith(("[", "{")):
        try:
            table[keys[-1]] = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise SettingsError(f"{name}: not valid JSON: {error}") from error
    else:
        table[keys[-1]] = value


def _refuse_unknown(kind: type[msgspec.Struct], table: Mapping[str, Any], path: str) -> None:
    """Raises when `table` holds a key that `kind` does not declare."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            known = ", ".join(sorted(fields))
            raise SettingsError(f"Unknown setting `{path}{key}`; known here: {known}.")
        section, items = _find_struct(fields[key].type), _find_item_struct(fields[key].type)
        if section is not None and isinstance(value, Mapping):
            inner = typing.cast("Mapping[str, Any]", value)
            _refuse_unknown(section, inner, f"{path}{key}.")
        if items is not None and isinstance(value, list):
            for index, item in enumerate(typing.cast("list[Any]", value)):
                if isinstance(item, Mapping):
                    inner = typing.cast("Mapping[str, Any]", item)
                    _refuse_unknown(items, inner, f"{path}{key}[{index}].")


def _find_struct(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that `annotation` or one of its union members is, if any."""
    for member in _list_members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _find_item_struct(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct of which `annotation` or one of its union members is a tuple, if any."""
    for member in _list_members(annotation):
        if typing.get_origin(member) is tuple:
            return _find_struct(typing.get_args(member)[0])
    return None


def _list_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; `annotation` itself when it is none."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _decode_hook(kind: type, value: Any) -> Any:
    """Builds the types that msgspec does not know."""
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"{value!r} is not a {kind.__name__}")
