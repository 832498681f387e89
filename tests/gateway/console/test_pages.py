"""What operators read and do in the console, and that it is what the JSON routes do."""

from contracts.ids import AccountId
from contracts.pricing import TokenRates
from contracts.quotas import QuotaLimits, QuotaScope
from tenancy.audit.entries import AuditFilter
from tests.gateway.console.browser_double import BrowserDouble
from tests.gateway.running_gateway import RunningGateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode


async def create_account(browser: BrowserDouble, **fields: str) -> str:
    """The path of a new account."""
    made = await browser.submit("/console/accounts/new", {"name": "Aster", **fields})
    assert made.status == 303, made.seen
    return made.location


def find_id(path: str) -> AccountId:
    """The account of a page."""
    return AccountId(path.split("/")[3])


async def test_an_account_s_life(browser: BrowserDouble, gateway: RunningGateway) -> None:
    path = await create_account(browser, allowed_regions="weur, eeur", priority="3")
    page = await browser.get(path)
    assert "The account “Aster” is there." in page.seen
    assert "is there." not in (await browser.get(path)).seen  # said once
    account = await gateway.tenancy.get_account(find_id(path))
    assert (account.allowed_regions, account.priority) == (("weur", "eeur"), 3)

    changed = {"name": "Birch", "retention": "none", "allowed_regions": "none"}
    assert (await browser.submit(path, changed)).status == 303
    account = await gateway.tenancy.get_account(find_id(path))
    assert (account.name, account.retention) == ("Birch", "none")
    assert (account.allowed_regions, account.is_metered) == ((), False)

    assert "Suspend this account?" in (await browser.get(f"{path}/suspend")).seen
    assert (await browser.submit(path, {}, f"{path}/delete")).status == 400  # no name
    await browser.submit(path, {}, f"{path}/suspend")
    assert "suspended" in (await browser.get(path)).seen
    await browser.submit(path, {}, f"{path}/resume")
    active = await browser.submit(path, {"name": "Birch"}, f"{path}/delete")
    assert active.status == 400
    assert "uspend the account" in active.seen  # before it can be deleted
    await browser.submit(path, {}, f"{path}/suspend")
    wrong = await browser.submit(path, {"name": "Aster"}, f"{path}/delete")
    assert (wrong.status, "not the name" in wrong.seen) == (400, True)
    gone = await browser.submit(path, {"name": "Birch"}, f"{path}/delete")
    assert (gone.status, gone.location) == (303, "/console/accounts")
    assert (await browser.get(path)).status == 404

    entries = await gateway.tenancy.list_audit_entries(AuditFilter(account_id=find_id(path)))
    (operator,) = await gateway.tenancy.list_operators()
    assert {entry.actor.actor_id for entry in entries} == {operator.operator_id}
    assert all(entry.actor.address == "127.0.0.1" for entry in entries)


async def test_rules_on_regions_are_shown_as_they_were_typed(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    typed = {
        "allowed_jurisdictions": "eu",
        "preferred_regions": "weur, eeur",
        "preferred_jurisdictions": "eu",
    }
    path = await create_account(browser, **typed)
    page = await browser.get(path)
    assert all(
        f'name="{name}"' in page.text and value in page.text for name, value in typed.items()
    )
    account = await gateway.tenancy.get_account(find_id(path))
    assert (account.allowed_regions, account.allowed_jurisdictions) == (None, ("eu",))
    assert account.preferred_regions == ("weur", "eeur")
    assert account.preferred_jurisdictions == ("eu",)
    assert "law of eu" in (await browser.get("/console/accounts")).seen
    changed = typed | {"name": "Aster", "allowed_jurisdictions": "none", "preferred_regions": ""}
    assert (await browser.submit(path, changed)).status == 303
    account = await gateway.tenancy.get_account(find_id(path))
    assert (account.allowed_jurisdictions, account.preferred_regions) == ((), ())


async def test_a_form_that_is_refused_keeps_what_was_typed(browser: BrowserDouble) -> None:
    typed = {"name": "Aster", "allowed_regions": "WEUR!", "priority": "many"}
    for fields in (typed, {**typed, "priority": "1"}, {**typed, "retention": "forever"}):
        page = await browser.submit("/console/accounts/new", fields)
        assert page.status == 400
        assert 'value="WEUR!"' in page.text
        assert 'role="alert"' in page.text


async def test_a_token_s_life(browser: BrowserDouble, gateway: RunningGateway) -> None:
    path = await create_account(browser)
    fields = {
        "name": "production",
        "permissions": ["Workers AI Read", "Billing Read"],
        "models": "@hearth/*",
        "networks": "127.0.0.0/8",
        "expires_on": "2099-12-31",
    }
    made = await browser.submit(f"{path}/tokens", fields)
    assert made.status == 303
    page = await browser.get(made.location)
    value = page.text.partition('id="value"')[2].partition(">")[2].partition("<")[0].strip()
    assert value.startswith("hearth_pat_")
    assert page.headers["cache-control"] == "no-store"
    assert value not in (await browser.get(made.location)).text  # shown once

    (token,) = await gateway.tenancy.list_api_tokens(find_id(path))
    assert {policy.models for policy in token.policies} == {("@hearth/*",), ("*",)}
    run = f"/client/v4/accounts/{find_id(path)}/ai/run/{MODEL}"
    assert (await gateway.send("POST", run, b'{"prompt": "Hi"}', api_token=value)).status == 200

    async def is_refused() -> bool:
        reply = await gateway.send("POST", run, b'{"prompt": "Hi"}', api_token=value)
        return reply.status == 401

    await browser.submit(made.location, {}, f"{made.location}/disable")
    await wait_until_async(is_refused, 2.0)
    await browser.submit(made.location, {}, f"{made.location}/enable")
    rolled = await browser.submit(made.location, {}, f"{made.location}/roll")
    assert rolled.location == made.location
    assert "Copy the value now" in (await browser.get(made.location)).seen
    await wait_until_async(is_refused, 2.0)
    deleted = await browser.submit(made.location, {}, f"{made.location}/delete")
    assert deleted.location == f"{path}/tokens"
    assert (await browser.get(made.location)).status == 404


async def test_a_token_without_rights_or_for_a_token_of_another_account_is_refused(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    path = await create_account(browser)
    none = await browser.submit(f"{path}/tokens", {"name": "weak"})
    made_up = await browser.submit(f"{path}/tokens", {"name": "x", "permissions": ["Everything"]})
    assert (none.status, made_up.status) == (400, 400)
    (other,) = await gateway.tenancy.list_api_tokens(gateway.tenant.account_id)
    assert (await browser.get(f"{path}/tokens/{other.api_token_id}")).status == 404
    own = f"/console/accounts/{gateway.tenant.account_id}/tokens/{other.api_token_id}"
    assert (await browser.get(own)).status == 200  # the control


async def test_limits_are_set_changed_and_removed(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    path = await create_account(browser)
    scope = QuotaScope(find_id(path))
    fields = {"requests_per_min": "60", "spend_per_month": "0.5", "concurrent_streams": "0"}
    assert (await browser.submit(f"{path}/limits/edit", fields)).status == 303
    (quota,) = await gateway.tenancy.list_quotas(find_id(path))
    limits = QuotaLimits(
        requests_per_min=60, spend_nano_per_month=500_000_000, concurrent_streams=0
    )
    assert (quota.scope, quota.limits) == (scope, limits)
    assert 'value="0.5"' in (await browser.get(f"{path}/limits/edit")).text
    assert "0 of 0.5000" in (await browser.get(f"{path}/limits")).seen
    for wrong in ({"requests_per_min": "-1"}, {"spend_per_month": "1e999"}, {"model": "x"}):
        page = await browser.submit(f"{path}/limits/edit", wrong)
        assert (page.status, 'role="alert"' in page.text) == (400, True), wrong
    await browser.submit(f"{path}/limits/edit", {}, f"{path}/limits/delete")
    assert await gateway.tenancy.list_quotas(find_id(path)) == []


async def test_usage_is_shown_and_exported_as_the_json_routes_do(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    await gateway.tenancy.set_price("*", TokenRates(*4 * (1_000_000_000,)))
    account = gateway.tenant.account_id

    async def is_served() -> bool:
        return (await gateway.run({"prompt": "Hi"})).status == 200

    await wait_until_async(is_served)

    async def is_counted() -> bool:
        await gateway.tenancy.roll_up_usage()
        page = await browser.get(f"/console/accounts/{account}/usage?step=hour")
        return MODEL in page.seen

    await wait_until_async(is_counted)
    page = await browser.get(f"/console/accounts/{account}/usage")
    link = next(
        part.partition('"')[0]
        for part in page.text.split('href="')
        if part.startswith("/console") and "format=csv" in part
    ).replace("&amp;", "&")
    exported = await browser.get(link)
    assert exported.headers["content-disposition"].startswith('attachment; filename="usage-')
    header, *rows = exported.text.splitlines()
    assert header.startswith("request_id,account_id")
    assert all(account in row for row in rows)
    query = link.partition("?")[2]
    reply = await gateway.send(
        "GET",
        f"/operator/v1/accounts/{account}/usage/export?{query}",
        api_token=gateway.operator,
        origin=gateway.admin,
    )
    assert reply.body.decode() == exported.text
    ranked = await browser.get("/console/usage")
    assert "tests" in ranked.seen


async def test_pages_of_usage_end_where_the_next_begins(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    path = f"/console/accounts/{gateway.tenant.account_id}/usage"
    for query in (
        "cursor=nonsense",
        "step=year",
        "since=yesterday",
        "since=2026-01-02&before=2026-01-01",
    ):
        page = await browser.get(f"{path}?{query}")
        assert (page.status, 'role="alert"' in page.text) == (400, True), query
    assert (await browser.get(f"{path}?since=2026-01-01&before=2026-01-02")).status == 200


async def test_models_fleet_and_decisions_are_shown(
    browser: BrowserDouble, gateway: RunningGateway, node: ScriptedNode
) -> None:
    await gateway.run({"prompt": "a secret question"})
    await gateway.run({"prompt": "Hi"}, "@made/up/model")
    assert MODEL in (await browser.get("/console/models")).seen
    fleet = (await browser.get("/console/fleet")).seen
    assert "node-1" in fleet
    assert "serving" in fleet
    decisions = await browser.get("/console/routing")
    assert "expected to answer first" in decisions.seen
    assert "secret question" not in decisions.text
    assert "no decision" in (await browser.get("/console/routing?model=@other/model")).seen
    await node.stop()

    async def is_away() -> bool:
        return "away" in (await browser.get("/console/fleet")).seen

    await wait_until_async(is_away)
    assert "is not connected" in (await browser.get("/console")).seen


async def test_the_audit_log_is_read_filtered_and_checked(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    path = await create_account(browser)
    log = await browser.get("/console/audit")
    assert "account.create" in log.seen
    filtered = await browser.get("/console/audit?action=operator.create&since=2020-01-01")
    assert "operator.create" in filtered.seen
    assert find_id(path) not in filtered.text
    assert (await browser.get("/console/audit?account_id=nobody")).status == 400
    assert (await browser.get("/console/audit?after=x")).status == 400
    checked = await browser.get("/console/audit/check")
    assert "The log is as it was written" in checked.seen
    reply = await gateway.send(
        "GET", "/operator/v1/audit/check", api_token=gateway.operator, origin=gateway.admin
    )
    assert reply.json["result"]["is_intact"] is True


async def test_what_is_nowhere_is_said_in_a_page(browser: BrowserDouble) -> None:
    for path in ("/console/nowhere", f"/console/accounts/{'f' * 32}", "/console/accounts/short"):
        page = await browser.get(path)
        assert page.status == 404
        assert "This did not work" in page.seen
    assert (await browser.get("/")).location == "/console"


async def test_an_operator_drains_a_node_and_takes_it_back(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    for wish, said, move_after_s in (
        ("drain", "drained", None),
        ("empty", "goes on at other nodes", 60),
    ):
        fields = {"node_id": "node-1", "wish": wish}
        assert (await browser.submit("/console/fleet", fields)).status == 303
        assert said in (await browser.get("/console/fleet")).seen
        (drain,) = await gateway.tenancy.list_node_drains()
        assert drain.move_after_s == move_after_s
        fields["wish"] = "undrain"
        if wish == "empty":
            assert (await browser.submit("/console/fleet", fields)).status == 303
    assert "drained" not in (await browser.get("/console/fleet")).seen
    assert await gateway.tenancy.list_node_drains() == []
    for fields in ({"node_id": "node-1", "wish": "burn"}, {"node_id": "no-node", "wish": "drain"}):
        assert (await browser.submit("/console/fleet", fields)).status in (400, 404)


async def test_an_operator_says_where_weights_should_be(
    browser: BrowserDouble, gateway: RunningGateway, node: ScriptedNode
) -> None:
    assert "Demand decides" in (await browser.get("/console/models")).seen
    for wish, said in (("pin", "Pinned to the device"), ("evict", "Out of memory")):
        fields = {"model": MODEL, "wish": wish}
        assert (await browser.submit("/console/models", fields)).status == 303
        assert said in (await browser.get("/console/models")).seen
    await wait_until(lambda: len(node.plans) >= 2)
    (rule,) = await gateway.tenancy.list_placement_rules()
    assert rule.tier == "disk"
    wrong = await browser.submit("/console/models", {"model": MODEL, "wish": "burn"})
    assert wrong.status == 400
    released = {"model": MODEL, "wish": "release"}
    assert (await browser.submit("/console/models", released)).status == 303
    assert "Demand decides" in (await browser.get("/console/models")).seen
