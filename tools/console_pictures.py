"""Takes the pictures of docs/img: every page of the console over made-up data.

    .venv/bin/python -m tools.console_pictures [FOLDER]

Needs Node, npm and Debian's `chromium`. Pillow, where it is installed, makes the files small.
Read next: `tests/gateway/console/scene.py`.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from migrations.upgrade import upgrade_database
from tests.fixtures.node_program import BROWSER, install_packages
from tests.gateway.console.scene import invent_hour, run_scene
from tests.gateway.running_gateway import RunningGateway

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTHS: Final = (1280, 400)
_MAX_COLOURS: Final = 64


async def take_pictures(folder: Path) -> None:
    """Writes them to `folder`."""
    install_packages(BROWSER)
    with tempfile.TemporaryDirectory() as scratch:
        template = Path(scratch) / "template.db"
        await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
        place = Path(scratch) / "gateway"
        place.mkdir()
        async with run_scene(place, template) as gateway:
            invent_hour(gateway)
            wanted = {
                "base": gateway.admin,
                "credential": gateway.operator,
                "folder": str(folder),
                "widths": WIDTHS,
                "pages": await list_pages(gateway),
            }
            process = await asyncio.create_subprocess_exec(
                "node", str(BROWSER / "pictures.mjs"), stdin=subprocess.PIPE
            )
            await process.communicate(json.dumps(wanted).encode())
            assert process.returncode == 0


async def list_pages(gateway: RunningGateway) -> list[dict[str, object]]:
    """Every page with the name of its picture."""
    accounts = await gateway.tenancy.list_accounts()
    (aster,) = [account for account in accounts if account.name == "Aster Press"]
    account = f"/console/accounts/{aster.account_id}"
    return [
        {"path": "/console", "name": "console-overview"},
        {"path": "/console/accounts", "name": "console-accounts"},
        {"path": "/console/accounts/new", "name": "console-account-new"},
        {"path": account, "name": "console-account"},
        {"path": f"{account}/suspend", "name": "console-account-suspend"},
        {"path": f"{account}/delete", "name": "console-account-delete"},
        {"path": f"{account}/tokens", "name": "console-tokens"},
        {
            "path": f"{account}/tokens",
            "name": "console-token",
            "steps": [
                {"fill": "#name", "value": "new program"},
                {"click": "text=Create API token"},
                {"wait": "#value"},
            ],
        },
        {"path": f"{account}/limits", "name": "console-limits"},
        {"path": f"{account}/limits/edit", "name": "console-limit"},
        {"path": f"{account}/usage", "name": "console-account-usage"},
        {"path": "/console/usage", "name": "console-usage"},
        {"path": "/console/models", "name": "console-models"},
        {"path": "/console/fleet", "name": "console-fleet"},
        {
            "path": f"/console/playground?account_id={aster.account_id}",
            "name": "console-playground",
            "steps": [
                {"click": "text=Make an API token for an hour", "when": "text=Make an API token"},
                {"wait": "#question"},
                {"click": "#ask"},
                {"wait": "#answer[data-state=done]"},
            ],
        },
        {"path": "/console/routing", "name": "console-routing"},
        {"path": "/console/audit", "name": "console-audit"},
        {"path": "/console/audit/check", "name": "console-audit-check"},
    ]


def shrink(file: Path) -> None:
    """A palette instead of true colour: a page has few."""
    try:
        from PIL import Image  # pyright: ignore[reportMissingImports] - installed apart
    except ImportError:
        return
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(_MAX_COLOURS, dither=Image.Dither.NONE).save(
            file, optimize=True
        )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "img"
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_pictures(target))
    for file in sorted(target.glob("console-*.png")):
        shrink(file)
        print(file.name, file.stat().st_size)
