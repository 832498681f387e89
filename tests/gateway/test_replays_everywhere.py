"""Answers given again, whose prompt another node has computed, or whose law has changed."""

from pathlib import Path

import pytest

from contracts.ids import RegionId
from tenancy.changes import AccountChange
from tests.gateway.prompt_pair import WHOLE, run_pair
from tests.gateway.running_gateway import run_gateway, to_bytes, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, run_node
from tests.gateway.test_continuation import are_known
from tests.gateway.test_narrowed_accounts import change
from tests.gateway.test_replays import ENAM, HI, WEUR

KEY, ANOTHER = {"idempotency-key": "k"}, {"idempotency-key": "another"}


@pytest.mark.parametrize("is_narrowed", [False, True])
async def test_an_answer_whose_prompt_was_computed_abroad_is_not_given_again_to_who_is_bound_home(
    tmp_path: Path, database_template: Path, is_narrowed: bool
) -> None:
    async with run_pair(tmp_path, database_template) as pair:
        gateway = pair.gateway
        pair.prompts.num_waiting = 1000  # so that the one in `xnam` computes it
        await pair.prompts.send_report()
        path = gateway.account_path(f"/ai/run/{MODEL}")
        first = await gateway.send("POST", path, to_bytes(WHOLE), headers=KEY)
        assert first.status == 200
        assert len(pair.others.streams) == 1  # in xnam
        assert first.headers["x-hearth-region"] == "weur"
        regions = (WEUR,) if is_narrowed else (WEUR, RegionId("xnam"))
        what = AccountChange(allowed_regions=regions)
        await change(gateway, gateway.tenant, what)
        again = await gateway.send("POST", path, to_bytes(WHOLE), headers=KEY)
        assert again.status == (403 if is_narrowed else 200)


@pytest.mark.parametrize("is_changed", [False, True])
async def test_a_header_s_jurisdiction_holds_for_an_answer_that_is_given_again(
    tmp_path: Path, database_template: Path, is_changed: bool
) -> None:
    async with (
        run_node("node-1", WEUR, "eu") as home,
        run_node("node-2", ENAM, "us") as abroad,
        run_gateway(tmp_path, database_template, [home, abroad]) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 2))
        path = gateway.account_path(f"/ai/run/{MODEL}")
        headers = KEY | {"x-hearth-jurisdictions": "us"}
        first = await gateway.send("POST", path, to_bytes(HI), headers=headers)
        assert (first.status, first.headers["x-hearth-region"]) == (200, ENAM)
        if is_changed:
            abroad.jurisdiction = "cn"
            await abroad.send_report()
            laws = gateway.gateway._pool.fleet.roster.laws  # type: ignore[reportPrivateUsage]
            await wait_until(lambda: ENAM in laws.list_regions(["cn"]))
            new = await gateway.send("POST", path, to_bytes(HI), headers=headers | ANOTHER)
            assert new.status == 403  # what is computed now may go nowhere
        again = await gateway.send("POST", path, to_bytes(HI), headers=headers)
        assert again.status == (403 if is_changed else 200)
