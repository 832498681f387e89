"""From a path to an inference route, without a framework."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.inference_paths import InferencePaths
from gateway.api.route_table import Route
from gateway.auth.access import Needs
from gateway.dialects.openai_chat import OPENAI_CHAT
from gateway.dialects.workers_ai import WORKERS_AI
from tenancy.interfaces import Permission

ACCESS = Needs(Permission.WORKERS_AI_READ)
ACCOUNT = "/client/v4/accounts/{account_id}"
PATHS = InferencePaths(
    [
        Route("run", "POST", ACCOUNT + "/ai/run/{model:path}", ACCESS, None, WORKERS_AI),
        Route("run_named", "POST", ACCOUNT + "/ai/run", ACCESS, None, WORKERS_AI),
        Route("chat", "POST", ACCOUNT + "/ai/v1/chat/completions", ACCESS, None, OPENAI_CHAT),
    ]
)


@pytest.mark.parametrize(
    ("path", "name", "account_id", "model"),
    [
        ("/client/v4/accounts/acc/ai/run/@cf/a/b", "run", "acc", "@cf/a/b"),
        ("/client/v4/accounts/acc/ai/run/m", "run", "acc", "m"),
        ("/client/v4/accounts/acc/ai/run//", "run", "acc", "/"),
        ("/client/v4/accounts/acc/ai/run", "run_named", "acc", None),
        ("/client/v4/accounts/acc/ai/v1/chat/completions", "chat", "acc", None),
        ("/client/v4/accounts//ai/run", "run_named", "", None),
    ],
)
def test_a_path_names_its_route(path: str, name: str, account_id: str, model: str | None) -> None:
    match = PATHS.find(path)
    assert match is not None
    assert (match.route.name, match.account_id, match.model) == (name, account_id, model)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/client/v4/accounts/acc",
        "/client/v4/accounts/acc/",
        "/client/v4/accounts/acc/ai/run/",
        "/client/v4/accounts/acc/ai/runs/@cf/a/b",
        "/client/v4/accounts/acc//ai/run/@cf/a/b",
        "//client/v4/accounts/acc/ai/run/@cf/a/b",
        "/x/client/v4/accounts/acc/ai/run/@cf/a/b",
        "/client/v4/accounts/acc/ai/v1/chat/completions/",
        "/client/v4/accounts/acc/x/../ai/run/@cf/a/b",
    ],
)
def test_another_path_names_none(path: str) -> None:
    assert PATHS.find(path) is None


@given(st.text(max_size=80))
def test_no_text_makes_it_fail(text: str) -> None:
    PATHS.find(text)
    match = PATHS.find(f"/client/v4/accounts/a/ai/run/{text}")
    assert (match is None) == (text == "")
