"""docker-compose.yml as tests see it: parsed, defaults filled in, its TOML files read.

Read next: `compose_checks`.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
GPU_FILE = ROOT / "docker-compose.gpu.yml"
TWO_GATEWAYS_FILE = ROOT / "docker-compose.two-gateways.yml"
_VARIABLE = re.compile(r"\$\{\w+(?::?-([^}]*))?\}")


class _ComposeLoader(yaml.SafeLoader):
    """Knows compose's own tag, whose list stands instead of another file's."""


_ComposeLoader.add_constructor("!override", yaml.SafeLoader.construct_yaml_seq)


@dataclass(frozen=True)
class ComposeFile:
    """A compose file and the settings tables that its services mount, by service name."""

    content: dict[str, Any]
    tables: dict[str, dict[str, Any]]

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        """All services by name."""
        return self.content["services"]

    @property
    def own_services(self) -> dict[str, dict[str, Any]]:
        """The services that run our own images."""
        return {name: s for name, s in self.services.items() if "hearth-" in s["image"]}


def read_compose(path: Path = COMPOSE_FILE) -> dict[str, Any]:
    """The parsed file, every `${NAME:-default}` replaced by its default."""
    text = _VARIABLE.sub(lambda match: match[1] or "", path.read_text(encoding="utf-8"))
    return _ComposeLoader(text).get_single_data()


def load_compose() -> ComposeFile:
    """A fresh copy of docker-compose.yml that a test may change."""
    content = read_compose()
    tables: dict[str, dict[str, Any]] = {}
    for name, service in content["services"].items():
        for config in service.get("configs", ()):
            file = ROOT / content["configs"][config["source"]]["file"]
            if file.suffix != ".toml":
                continue
            tables[name] = tomllib.loads(file.read_text(encoding="utf-8"))
    return ComposeFile(content, tables)


def list_mounts(service: dict[str, Any]) -> dict[str, str]:
    """Volume name by the path at which `service` mounts it."""
    mounts: dict[str, str] = {}
    for volume in service.get("volumes", ()):
        name, target, *_ = volume.split(":")
        mounts[target] = name
    return mounts


def list_file_variables(service: dict[str, Any]) -> dict[str, str]:
    """Environment variables whose value is the path of a mounted secret."""
    environment: dict[str, str] = service.get("environment", {})
    return {name: value for name, value in environment.items() if name.endswith("_FILE")}
