"""The door: who gets in, what the cookie is worth, and when a session ends."""

from pathlib import Path

from gateway.auth.operator_sessions import IDLE_S, LONGEST_S, MAX_SESSIONS, OperatorSessions
from gateway.sources import Sources, create_sources
from tests.gateway.console.browser_double import BrowserDouble
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode


async def test_an_operator_signs_in_and_out_again(stranger: BrowserDouble) -> None:
    page = await stranger.get("/console")
    assert (page.status, page.location) == (303, "/console/sign-in")
    entered = await stranger.sign_in()
    assert (entered.status, entered.location) == (303, "/console")
    overview = await stranger.get("/console")
    assert overview.status == 200
    assert "Overview" in overview.seen
    before = dict(stranger.cookies)
    left = await stranger.submit("/console", {}, "/console/sign-out")
    assert (left.status, left.location) == (303, "/console/sign-in")
    stranger.cookies = before  # as a thief would have kept it
    assert (await stranger.get("/console")).status == 303


async def test_the_cookie_is_hidden_from_scripts_and_from_other_sites(
    stranger: BrowserDouble,
) -> None:
    cookie = (await stranger.sign_in()).cookies["hearth_console"]
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "strict"
    assert not cookie["secure"]  # the control of the next test: this is plain HTTP on loopback
    assert cookie["max-age"] == cookie["expires"] == ""


async def test_behind_tls_the_cookie_is_secure_and_of_this_host_alone(
    stranger: BrowserDouble,
) -> None:
    token = (await stranger.get("/console/sign-in")).form_token
    fields = {"credential": stranger.gateway.operator, "form_token": token}
    headers = {"sec-fetch-site": "same-origin", "origin": "https://console.example.org"}
    entered = await stranger.post("/console/sign-in", fields, headers)
    cookie = entered.cookies["__Host-hearth_console"]
    assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")
    assert (await stranger.get("/console")).status == 200


async def test_only_operators_get_in(stranger: BrowserDouble) -> None:
    tenant = stranger.gateway.tenant.api_token
    for credential in (" ", "hearth_op_" + "0" * 48, tenant, "x" * 10_000):
        page = await stranger.sign_in(credential)
        assert page.status == 401
        assert "not the credential of an operator" in page.seen
        assert credential.strip() == "" or credential not in page.text
        assert "hearth_console" not in stranger.cookies
    assert (await stranger.get("/console")).status == 303


async def test_wrong_credentials_are_counted(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    auth = {"max_failures_per_address_per_min": 3}
    async with run_gateway(tmp_path, database_template, [node], auth=auth) as gateway:
        stranger, inside = BrowserDouble(gateway), BrowserDouble(gateway)
        await inside.sign_in()
        for _ in range(3):
            assert (await stranger.sign_in("hearth_op_" + "0" * 48)).status == 401
        refused = await stranger.sign_in("hearth_op_" + "1" * 48)
        assert refused.status == 429
        assert "Too many wrong credentials" in refused.seen
        assert (await inside.get("/console")).status == 200  # whoever is in, stays


async def test_a_session_ends_with_its_operator(
    browser: BrowserDouble, gateway: RunningGateway
) -> None:
    second = await gateway.tenancy.create_operator("second")
    other = BrowserDouble(gateway)
    await other.sign_in(second.value.reveal())
    assert (await other.get("/console")).status == 200
    await gateway.tenancy.delete_operator(second.operator.operator_id)

    async def is_out() -> bool:
        return (await other.get("/console")).status == 303

    await wait_until_async(is_out, 2.0)
    assert (await browser.get("/console")).status == 200  # the control


async def test_a_page_that_reads_itself_again_is_told_and_not_sent_on(
    browser: BrowserDouble, stranger: BrowserDouble
) -> None:
    live = {"x-hearth-live": "1"}
    assert (await browser.get("/console", live)).status == 200
    assert (await stranger.get("/console", live)).status == 401


async def test_an_id_that_a_browser_brings_along_is_never_a_session_s(
    stranger: BrowserDouble, gateway: RunningGateway
) -> None:
    planted = "a" * 64
    stranger.cookies["hearth_console"] = planted
    await stranger.sign_in()
    assert stranger.cookies["hearth_console"] != planted
    attacker = BrowserDouble(gateway, {"hearth_console": planted})
    assert (await attacker.get("/console")).status == 303
    # The control: who has the id that was given out is in.
    thief = BrowserDouble(gateway, {"hearth_console": stranger.cookies["hearth_console"]})
    assert (await thief.get("/console")).status == 200


async def test_signing_in_twice_gives_two_sessions(browser: BrowserDouble) -> None:
    first = browser.cookies["hearth_console"]
    await browser.sign_in()
    assert browser.cookies["hearth_console"] != first


async def test_nobody_is_sent_anywhere_but_to_the_console(stranger: BrowserDouble) -> None:
    for target in (
        "https://evil.example",
        "//evil.example/console",
        "/\\evil.example",
        "/console/../../evil",
        "/console//evil.example",
        "/console@evil.example",
        "/console/accounts\r\nset-cookie: a=b",
        "javascript:alert(1)",
        "/operator/v1/accounts",
        "console",
    ):
        entered = await stranger.sign_in(next_path=target)
        assert (entered.status, entered.location) == (303, "/console"), target
    # The control: a page of the console is where one is sent.
    assert (await stranger.sign_in(next_path="/console/fleet")).location == "/console/fleet"


async def test_after_signing_in_one_is_where_one_wanted_to_be(stranger: BrowserDouble) -> None:
    wanted = "/console/audit?action=account.create"
    page = await stranger.get(wanted)
    assert page.status == 303
    form = await stranger.get(page.location)
    assert 'value="/console/audit?action=account.create"' in form.text
    assert (await stranger.sign_in(next_path=wanted)).location == wanted


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def read(self) -> float:
        return self.now_s


class OneOperator:
    """A directory that knows everybody."""

    async def find_operator(self, value: str) -> object:
        return value


def create_sessions(clock: Clock) -> OperatorSessions:
    """Sessions whose time the test moves."""
    sources = create_sources()
    return OperatorSessions(
        OneOperator(),  # type: ignore[arg-type]
        Sources(clock.read, sources.unix_s, sources.random_bits),
    )


async def is_alive(sessions: OperatorSessions, value: str, *more: tuple[bytes, bytes]) -> bool:
    """Whether the cookie opens anything; asking uses the session unless `more` says otherwise."""
    try:
        await sessions.find([(b"cookie", f"hearth_console={value}".encode()), *more])
    except Exception:
        return False
    return True


async def test_a_session_ends_when_nobody_uses_it() -> None:
    clock = Clock()
    sessions = create_sessions(clock)
    used, left = sessions.begin("a"), sessions.begin("b")
    live = (b"x-hearth-live", b"1")
    clock.now_s += IDLE_S - 1
    assert await is_alive(sessions, used)
    assert await is_alive(sessions, left, live)  # a page by itself is no use
    clock.now_s += 2
    assert await is_alive(sessions, used)
    assert not await is_alive(sessions, left)


async def test_a_session_ends_however_much_it_is_used() -> None:
    clock = Clock()
    sessions = create_sessions(clock)
    value = sessions.begin("a")
    for _ in range(int(LONGEST_S / IDLE_S)):
        assert await is_alive(sessions, value)
        clock.now_s += IDLE_S
    clock.now_s += 1
    assert not await is_alive(sessions, value)


async def test_sessions_are_bounded_and_the_longest_unused_goes_first() -> None:
    clock = Clock()
    sessions = create_sessions(clock)
    values = []
    for _ in range(MAX_SESSIONS):
        clock.now_s += 0.001
        values.append(sessions.begin("a"))
    clock.now_s += 0.001
    assert await is_alive(sessions, values[0])
    clock.now_s += 0.001
    last = sessions.begin("a")
    assert await is_alive(sessions, values[0])
    assert not await is_alive(sessions, values[1])
    assert await is_alive(sessions, last)
