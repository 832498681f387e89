"""Base images made of Debian's packages, where no registry of images answers.

Each is a recipe: a release, packages, commands. The archive is kept under the digest of its recipe,
and the engine is given it once. What a stand-in cannot prove: that the official image of the same
name behaves the same. Read next: `stand_ins/`, `private_engine`.
"""

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.compose_proof.host import NEXT_RELEASE, QUIET, find_mirror
from tools.compose_proof.narration import run_command, step

AUTHORITIES = Path("/usr/local/share/ca-certificates")
TRUST = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True)
class Recipe:
    """How a root file system is made, and what the image made of it says of itself."""

    tag: str
    release: str
    packages: tuple[str, ...]
    commands: tuple[str, ...]
    settings: tuple[str, ...]
    """Dockerfile instructions of the import."""

    @property
    def digest(self) -> str:
        """A name for exactly this recipe and this machine's own certificate authorities."""
        digest = hashlib.sha256(repr(self).encode())
        for file in list_authorities():
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]


def python_recipe(trusted_host: str) -> Recipe:
    """What stands for `python:3.11-slim-bookworm`: pip and site-packages under /usr/local."""
    return Recipe(
        tag="python:3.11-slim-bookworm",
        release="bookworm",
        packages=("python3.11", "python3.11-venv"),
        commands=("/usr/bin/python3.11 -m venv /usr/local",),
        settings=(
            "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
            f"ENV PIP_CERT={TRUST} SSL_CERT_FILE={TRUST} REQUESTS_CA_BUNDLE={TRUST}",
            f"ENV PIP_TRUSTED_HOST={trusted_host} PIP_DISABLE_PIP_VERSION_CHECK=1",
            'CMD ["python3"]',
        ),
    )


STORES = Recipe(
    tag="hearth-proof/stores:latest",
    release=NEXT_RELEASE,
    packages=("postgresql-17", "valkey-server", "valkey-tools", "prometheus"),
    commands=(
        "groupmod -g 999 postgres && usermod -u 999 postgres",
        "install -d -o 999 -g 999 -m 1777 /var/lib/postgresql/data",
    ),
    settings=("ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",),
)


def make_archive(recipe: Recipe, cache: Path) -> Path:
    """The recipe's root file system as a tar file, made unless the cache has it."""
    name = recipe.tag.partition(":")[0].replace("/", "-")
    archive = cache / f"{name}-{recipe.digest}.tar"
    if archive.exists():
        return archive
    for old in cache.glob(f"{name}-*.tar"):
        old.unlink()
    root = cache / f"{name}.root"
    with step(f"making the base of {recipe.tag} from Debian's packages ({recipe.release})"):
        shutil.rmtree(root, ignore_errors=True)
        run_command(
            [
                "debootstrap",
                "--variant=minbase",
                "--include=ca-certificates,netbase,tzdata",
                recipe.release,
                str(root),
                find_mirror(),
            ]
        )
        _furnish(recipe, root)
        draft = archive.with_suffix(".draft")
        tar = ["tar", "-C", str(root), "--numeric-owner", "--exclude=./dev/*", "-cf", str(draft)]
        run_command([*tar, "."])
        draft.rename(archive)
        shutil.rmtree(root)
    return archive


def list_authorities() -> list[Path]:
    """Certificate authorities that were added to this machine; builds need them too."""
    return sorted(AUTHORITIES.glob("*.crt"))


def _furnish(recipe: Recipe, root: Path) -> None:
    """Installs the packages and runs the commands inside `root`."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    _create_no_cluster(root)
    mirror, release = find_mirror(), recipe.release
    lines = [f"deb {mirror} {suite} main" for suite in (release, f"{release}-updates")]
    lines.append(f"deb {mirror}-security {release}-security main")
    (root / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
    for file in list_authorities():
        shutil.copy(file, root / "usr/local/share/ca-certificates")
    install = "apt-get install -y -qq --no-install-recommends " + " ".join(recipe.packages)
    _run_inside(root, ["apt-get update -qq", install, "update-ca-certificates", *recipe.commands])
    for leftover in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / leftover)
        (root / leftover).mkdir()
    (root / "etc/resolv.conf").unlink()


def _create_no_cluster(root: Path) -> None:
    """Keeps Debian's PostgreSQL from making a cluster of its own."""
    folder = root / "etc/postgresql-common"
    folder.mkdir()
    (folder / "createcluster.conf").write_text("create_main_cluster = false\n")


def _run_inside(root: Path, commands: Iterable[str]) -> None:
    for command in commands:
        run_command(["chroot", str(root), "sh", "-c", command], environ={**QUIET, "LC_ALL": "C"})
