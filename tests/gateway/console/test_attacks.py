"""What others make a browser do or show: each attack fails, and a control shows that it would not.

Stored and reflected scripts, forged posts, frames.
"""

import re
from urllib.parse import quote

from gateway.console.assets import Assets
from gateway.console.posted_form import MAX_POST_BYTES
from gateway.console.rendering import Renderer
from tenancy.audit.entries import AuditFilter
from tests.gateway.console.browser_double import BrowserDouble

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
SCRIPT = re.compile(r"<(script(?! src=\"/console/assets/)|img src=x)", re.IGNORECASE)


async def create_account(browser: BrowserDouble, name: str) -> str:
    """The path of a new account."""
    made = await browser.submit("/console/accounts/new", {"name": name})
    assert made.status == 303, made.seen
    return made.location


async def list_account_pages(browser: BrowserDouble, name: str) -> list[str]:
    """Pages that show the account's name."""
    path = await create_account(browser, name)
    await browser.submit(path, {}, f"{path}/suspend")
    parts = ("", "/suspend", "/delete", "/tokens", "/limits", "/limits/edit", "/usage")
    return ["/console/accounts", *(path + part for part in parts)]


async def test_a_hostile_name_is_text_on_every_page(browser: BrowserDouble) -> None:
    pages = await list_account_pages(browser, HOSTILE)
    for path in pages:
        page = await browser.get(path)
        assert page.status == 200, path
        assert SCRIPT.search(page.text) is None, path
        assert "&lt;script&gt;alert(1)" in page.text, path
        assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(..)", page.text), path


def test_without_escaping_it_would_be_a_script() -> None:
    renderer = Renderer(Assets(), "gateway-1")
    values = {"code": 400, "phrase": "", "is_ours": False, "message": HOSTILE}
    assert SCRIPT.search(bytes(renderer.show_anyone("error.html", **values).body).decode()) is None
    renderer._environment = renderer._environment.overlay(autoescape=False)
    assert SCRIPT.search(bytes(renderer.show_anyone("error.html", **values).body).decode())


async def test_nothing_of_an_address_or_a_header_becomes_a_script(browser: BrowserDouble) -> None:
    agent = {"user-agent": HOSTILE, "referer": f"http://x/{HOSTILE}"}
    hostile = quote(HOSTILE, safe="")
    for path in (
        f"nowhere/{hostile}",
        f"accounts?after={hostile}",
        f"sign-in?next={hostile}",
        f"accounts/{hostile}",
        f"audit?action={hostile}&actor_id={hostile}&since={hostile}",
        f"usage?since={hostile}&step={hostile}",
        f"routing?model={hostile}",
        f"playground?account_id={hostile}&model={hostile}",
    ):
        page = await browser.get(f"/console/{path}", agent)
        assert page.headers["content-type"].startswith("text/html"), path
        assert SCRIPT.search(page.text) is None, path


async def test_every_answer_forbids_scripts_of_others_and_frames(browser: BrowserDouble) -> None:
    stranger = BrowserDouble(browser.gateway)
    answers = [
        await browser.get("/console"),
        await browser.get("/console/nowhere"),
        await stranger.get("/console"),
        await stranger.get("/console/sign-in"),
        await browser.post("/console/accounts/new", {"name": "x"}),
        await browser.get("/console/assets/console.js"),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert {answer.headers["cache-control"] for answer in answers[:-1]} == {"no-store"}


async def test_no_page_has_anything_inline_or_from_elsewhere(browser: BrowserDouble) -> None:
    for path in ("/console", "/console/accounts", "/console/accounts/new", "/console/sign-in"):
        text = (await browser.get(path)).text
        assert re.search(r"\sstyle=|\son[a-z]+=|<style|javascript:", text) is None, path
        assert re.findall(r"(?:src|href|action)=\"(?!/console|#)[^\"]*", text) == [], path
        for attributes, body in re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL):
            assert "src=" in attributes
            assert body == ""


async def count_accounts(browser: BrowserDouble) -> int:
    """How many accounts there are."""
    return len(await browser.gateway.tenancy.list_accounts())


async def test_a_forged_post_changes_nothing(browser: BrowserDouble) -> None:
    token = (await browser.get("/console/accounts/new")).form_token
    other = BrowserDouble(browser.gateway)
    await other.sign_in()
    theirs = (await other.get("/console/accounts/new")).form_token
    ours = {"sec-fetch-site": "same-origin"}
    before = await count_accounts(browser)
    for sent, headers in (
        ("", ours),
        ("0" * 64, ours),
        (theirs, ours),
        (token, {"sec-fetch-site": "cross-site"}),
        (token, {"sec-fetch-site": "same-site"}),
        (token, {"origin": "https://evil.example"}),  # an older browser
        (token, {"origin": "null"}),
    ):
        fields = {"name": "forged", "form_token": sent}
        answer = await browser.post("/console/accounts/new", fields, headers)
        assert answer.status == 403, (sent, headers)
    assert await count_accounts(browser) == before
    # The control: the same post from our own page.
    answer = await browser.post("/console/accounts/new", {"name": "own", "form_token": token})
    assert answer.status == 303
    assert await count_accounts(browser) == before + 1


async def test_no_page_that_is_read_changes_anything(browser: BrowserDouble) -> None:
    path = await create_account(browser, "kept")
    before = await browser.gateway.tenancy.list_audit_entries(AuditFilter())
    for part in ("", "/suspend", "/delete", "/new-salt", "/resume", "/tokens", "/limits"):
        await browser.get(path + part)
    assert await browser.gateway.tenancy.list_audit_entries(AuditFilter()) == before


async def test_signing_in_by_a_forged_post_fails(stranger: BrowserDouble) -> None:
    credential = stranger.gateway.operator
    await stranger.get("/console/sign-in")
    forged = {"credential": credential, "form_token": "0" * 64}
    assert (await stranger.post("/console/sign-in", forged)).status == 403
    assert "hearth_console" not in stranger.cookies
    assert (await stranger.sign_in()).status == 303  # the control


async def test_posts_are_forms_of_bounded_size_without_unknown_fields(
    browser: BrowserDouble,
) -> None:
    token = (await browser.get("/console/accounts/new")).form_token
    for fields in (
        {"name": "x", "form_token": token, "status": "active"},
        {"name": ["x", "y"], "form_token": token},
        {"name": "x" * MAX_POST_BYTES, "form_token": token},
        {"name": "x\0y", "form_token": token},
    ):
        answer = await browser.post("/console/accounts/new", fields)
        assert answer.status in (400, 413)
    assert (
        await browser.post("/console/accounts/new", {"name": "x", "form_token": token})
    ).status == 303
    assert (await browser.get("/console/audit?action=a%00b")).status == 400
    assert (await browser.get("/console/accounts?after=%00")).status == 200
