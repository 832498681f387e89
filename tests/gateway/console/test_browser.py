"""The console in a real browser: Chromium, driven by playwright-core, with axe-core looking on.

One tour through everything, made once; each test asks about a part of what was found.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.node_program import BROWSER, install_packages, require_program
from tests.fixtures.services import give_up
from tests.gateway.console.scene import ANSWER, invent_hour, run_scene

TIMEOUT_S = 200
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the tour is made in the first test
PARTS = ("", "/suspend", "/tokens", "/limits", "/limits/edit", "/usage")


def require_browser() -> str:
    """The path of Chromium."""
    found = os.environ.get("HEARTH_CHROMIUM") or shutil.which("chromium")
    if found is None and os.environ.get("HEARTH_WITHOUT_BROWSER"):
        pytest.skip("NOT RUN: there is no Chromium, so no page was looked at.")
    if found is None:
        give_up("Chromium is not on this machine (Debian: chromium), so no page was looked at.")
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, database_template: Path) -> dict[str, Any]:
    """What the tour has found."""
    chromium = require_browser()
    install_packages(BROWSER)
    folder = tmp_path_factory.mktemp("console")
    return asyncio.run(take_tour(folder, database_template, chromium))


async def take_tour(folder: Path, template: Path, chromium: str) -> dict[str, Any]:
    """Runs the program in front of a gateway."""
    async with run_scene(folder, template) as gateway:
        invent_hour(gateway)
        accounts = await gateway.tenancy.list_accounts()
        (aster,) = [account for account in accounts if account.name == "Aster Press"]
        (dune,) = [account for account in accounts if account.name == "Dune Research"]
        account = f"/console/accounts/{aster.account_id}"
        wanted = {
            "base": gateway.admin,
            "credential": gateway.operator,
            "account": account,
            "pages": [
                *("/console", "/console/usage", "/console/fleet", "/console/accounts"),
                *(account + part for part in PARTS),
                *("/console/accounts/new", f"/console/accounts/{dune.account_id}/delete"),
                *("/console/models", "/console/routing", "/console/audit", "/console/audit/check"),
                f"/console/playground?account_id={aster.account_id}",
            ],
        }
        process = await asyncio.create_subprocess_exec(
            require_program("node"),
            str(BROWSER / "tour.mjs"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"HEARTH_CHROMIUM": chromium},
        )
        try:
            output, _ = await asyncio.wait_for(
                process.communicate(msgspec.json.encode(wanted)), TIMEOUT_S
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        seen = msgspec.json.decode(output)
        accounts = await gateway.tenancy.list_accounts()
        return seen | {"num_pages": len(wanted["pages"]), "names": [a.name for a in accounts]}


def test_the_tour_came_to_its_end(found: dict[str, Any]) -> None:
    assert found.get("failed") is None
    assert found["visited"] == found["num_pages"]


def test_every_page_is_accessible_in_light_and_dark(found: dict[str, Any]) -> None:
    assert found["control"] > 0  # it finds what is wrong
    assert found["violations"] == []
    assert found["ground"] == "rgb(23, 21, 19)"


def test_no_page_is_wider_than_the_window(found: dict[str, Any]) -> None:
    assert found["wide"] == []


def test_nothing_is_loaded_from_elsewhere_and_the_policy_is_never_broken(
    found: dict[str, Any],
) -> None:
    assert found["strangers"] == []
    assert found["complaints"] == []


def test_the_keyboard_goes_from_the_top_through_the_navigation(found: dict[str, Any]) -> None:
    assert found["tabs"][:4] == ["Skip to the content", "Hearth", "Overview", "Accounts"]
    assert "Sign out" in found["tabs"]


def test_a_token_s_value_is_shown_once(found: dict[str, Any]) -> None:
    assert found["value"].startswith("hearth_pat_")
    assert found["valueAgain"] == 0


def test_limits_are_set(found: dict[str, Any]) -> None:
    assert "77" in found["limits"]
    assert "of 120.50" in found["limits"]


def test_the_playground_shows_the_answer_as_it_comes(found: dict[str, Any]) -> None:
    assert found["answer"] == "".join(ANSWER)
    assert found["pieces"] >= len(ANSWER)
    assert "24 tokens read, 16 of them from the cache" in found["figures"]


def test_figures_stay_up_to_date_by_themselves(found: dict[str, Any]) -> None:
    assert found["live"] is True


def test_it_can_be_used_without_script(found: dict[str, Any]) -> None:
    assert found["withoutScript"] == "made without script"


def test_hostile_names_are_text_and_the_policy_stops_what_is_not(found: dict[str, Any]) -> None:
    assert found["shown"].startswith("<img src=x")
    assert (found["hacked"], found["hackedPastTemplates"]) == (0, 0)
    assert found["hackedElsewhere"] == 1  # the control


def test_another_site_can_neither_frame_the_console_nor_post_to_it(found: dict[str, Any]) -> None:
    assert found["frames"][0] == "framed"  # the control
    assert "Overview" not in found["frames"][1]
    assert "page of another site" in found["forged"]
    assert "forged" not in found["names"]
    assert "made without script" in found["names"]  # the control: the same form from our own page
