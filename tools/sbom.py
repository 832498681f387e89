"""Writes `dist/sbom.cdx.json`, what an installation of Hearth consists of, for `make sbom`.

CycloneDX, made by cyclonedx-bom in an environment of its own, from what `.venv` has, cut down to
what Hearth needs at run time: tools of development are left out. Prints the licences that occur;
a package without any ends the command with 1.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / ".cache" / "sbom-env"
GENERATOR = "cyclonedx-bom==7.5.0"
OUTPUT = ROOT / "dist" / "sbom.cdx.json"
OURSELVES = "hearth"


def main() -> int:
    """The exit status."""
    OUTPUT.parent.mkdir(exist_ok=True)
    document = json.loads(generate())
    wanted = list_needed(OURSELVES)
    components = [c for c in document["components"] if canonicalize_name(c["name"]) in wanted]
    kept = {component["bom-ref"] for component in components} | {"root-component"}
    document["components"] = components
    document["dependencies"] = [d for d in document.get("dependencies", ()) if d["ref"] in kept]
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    unknown = print_licences(components)
    print(f"{len(components)} packages in {OUTPUT.relative_to(ROOT)}")
    if unknown:
        print(f"Without a licence: {', '.join(unknown)}")
    return int(bool(unknown))


def generate() -> str:
    """What cyclonedx-bom says of this environment."""
    program = TOOL / "bin" / "cyclonedx-py"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(TOOL)], check=True)
        pip = [str(TOOL / "bin" / "python"), "-m", "pip", "install", "-qq", GENERATOR]
        subprocess.run(pip, check=True)
    command = [str(program), "environment", sys.executable, "--output-format", "JSON"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def list_needed(name: str) -> set[str]:
    """`name` and all that it needs to run, by canonical name, as installed here."""
    needed: set[str] = set()
    waiting = [canonicalize_name(name)]
    while waiting:
        current = waiting.pop()
        if current in needed:
            continue
        try:
            requirements = metadata.requires(current) or []
        except metadata.PackageNotFoundError:
            continue
        needed.add(current)
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return needed


def print_licences(components: list[dict[str, Any]]) -> list[str]:
    """Names without a licence; the others are printed by licence."""
    by_licence: dict[str, list[str]] = {}
    unknown: list[str] = []
    for component in components:
        names = sorted(set(_read_licences(component)))
        if not names:
            unknown.append(component["name"])
            continue
        by_licence.setdefault(" / ".join(names), []).append(component["name"])
    for licence, packages in sorted(by_licence.items()):
        print(f"{licence}: {', '.join(sorted(packages))}")
    return sorted(unknown)


def _read_licences(component: dict[str, Any]) -> Iterator[str]:
    """Identifiers or names of one component's licences."""
    for entry in component.get("licenses", ()):
        licence = entry.get("license", {})
        name = entry.get("expression") or licence.get("id") or licence.get("name")
        if name:
            yield name.splitlines()[0][:60]


if __name__ == "__main__":
    sys.exit(main())
