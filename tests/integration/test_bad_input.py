"""What clients get wrong is answered precisely, in the v4 envelope, and harms nobody else."""

from typing import Any

import httpx
import pytest

from tests.integration.account_client import MODEL
from tests.integration.running_dev import RunningDev

RUN = f"/ai/run/{MODEL}"
CHAT = "/ai/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


def post(dev: RunningDev, path: str, content: bytes | str, **headers: str) -> httpx.Response:
    """The answer to a body as it stands, with the good token unless `headers` say otherwise."""
    bearer = {"Authorization": f"Bearer {dev.access.api_token}", **headers}
    return httpx.post(dev.account_url + path, content=content, headers=bearer, timeout=60)


def post_json(dev: RunningDev, path: str, body: Any) -> httpx.Response:
    """The answer to a body that is valid JSON."""
    bearer = {"Authorization": f"Bearer {dev.access.api_token}"}
    return httpx.post(dev.account_url + path, json=body, headers=bearer, timeout=60)


def check_envelope(response: httpx.Response, status: int, code: int) -> None:
    """Status, code and the shape that clients rely on."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body["success"] is False
    assert body["result"] is None
    assert body["messages"] == []
    assert [error["code"] for error in body["errors"]] == [code]
    message = body["errors"][0]["message"]
    assert isinstance(message, str)
    assert len(message) > 10


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 5006),
        ({"prompt": "x", "messages": [USER]}, 5006),
        ({"prompt": ""}, 5006),
        ({"prompt": 5}, 5006),
        ({"messages": []}, 5006),
        ({"messages": [{"content": "no role"}]}, 5006),
        ({"messages": "Hi"}, 5006),
        ({"prompt": "x", "max_tokens": 0}, 5006),
        ({"prompt": "x", "max_tokens": -1}, 5006),
        ({"prompt": "x", "max_tokens": "many"}, 5006),
        ({"prompt": "x", "max_tokens": 1e300}, 5006),
        ({"prompt": "x", "temperature": -0.1}, 5006),
        ({"prompt": "x", "temperature": 6}, 5006),
        ({"prompt": "x", "top_p": 3}, 5006),
        ({"prompt": "x", "top_k": 0}, 5006),
        ({"prompt": "x", "top_k": 51}, 5006),
        ({"prompt": "x", "seed": 2**64}, 5006),
        ({"prompt": "x", "frequency_penalty": 2.5}, 5006),
        ({"prompt": "x", "stream": "yes"}, 5006),
        ({"prompt": "word " * 20_000}, 7400),
        ([], 5006),
        ("text", 5006),
        (None, 5006),
    ],
)
def test_a_bad_body_is_refused_with_its_code(dev: RunningDev, body: Any, code: int) -> None:
    check_envelope(post_json(dev, RUN, body), 400, code)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"prompt": "x"',
        b'{"prompt": "\xff"}',
        b'{"prompt": "x"} {}',
        b'{"prompt": "x", "temperature": NaN}',
        b"[" * 100_000,
        b"prompt=x",
    ],
    ids=["empty", "brace", "cut", "not UTF-8", "two values", "NaN", "deep", "form"],
)
def test_what_is_not_json_is_refused(dev: RunningDev, content: bytes) -> None:
    check_envelope(post(dev, RUN, content), 400, 5006)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/ai/run/@hearth/nothing", 400, 5007),
        ("/ai/run/tiny-chat", 404, 3042),
        ("/ai/run/@hearth/../tiny-chat", 404, 3042),
        ("/ai/nothing", 404, 7000),
    ],
)
def test_what_does_not_exist_is_named(dev: RunningDev, path: str, status: int, code: int) -> None:
    check_envelope(post_json(dev, path, {"prompt": "x"}), status, code)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Basic dXNlcjpwYXNz", 401),
    ],
)
def test_a_bad_credential_is_refused(dev: RunningDev, authorization: str, status: int) -> None:
    response = post(dev, RUN, b'{"prompt": "x"}', Authorization=authorization)
    check_envelope(response, status, 10000)


def test_a_credential_does_not_open_another_account(dev: RunningDev) -> None:
    foreign = dev.account_url.replace(dev.access.account_id, "0" * 32)
    headers = {"Authorization": f"Bearer {dev.access.api_token}"}
    response = httpx.post(foreign + RUN, json={"prompt": "x"}, headers=headers, timeout=60)
    check_envelope(response, 403, 10000)


def test_an_account_id_of_the_wrong_shape_is_named(dev: RunningDev) -> None:
    foreign = dev.account_url.replace(dev.access.account_id, "me")
    headers = {"Authorization": f"Bearer {dev.access.api_token}"}
    response = httpx.post(foreign + RUN, json={"prompt": "x"}, headers=headers, timeout=60)
    check_envelope(response, 404, 7003)


def test_a_wrong_method_is_named(dev: RunningDev) -> None:
    headers = {"Authorization": f"Bearer {dev.access.api_token}"}
    check_envelope(httpx.get(dev.account_url + RUN, headers=headers, timeout=60), 405, 7001)


def test_a_body_beyond_the_limit_is_refused(dev: RunningDev) -> None:
    check_envelope(post(dev, RUN, b"x" * 10_000_001), 413, 3006)


def test_the_openai_route_answers_in_both_forms(dev: RunningDev) -> None:
    response = post_json(dev, CHAT, {"model": "@hearth/nothing", "messages": [USER]})
    check_envelope(response, 400, 5007)
    assert response.json()["error"]["code"] == "model_not_found"


def test_the_operators_port_is_closed_to_tenants_and_the_reverse(dev: RunningDev) -> None:
    url = f"{dev.access.admin_url}/operator/v1/nodes"
    for api_token, status in ((dev.access.api_token, 401), (dev.access.admin_token, 200)):
        headers = {"Authorization": f"Bearer {api_token}"}
        assert httpx.get(url, headers=headers, timeout=10).status_code == status
    response = post(dev, RUN, b'{"prompt": "x"}', Authorization=f"Bearer {dev.access.admin_token}")
    check_envelope(response, 401, 10000)


def test_after_all_of_that_a_good_request_is_served(dev: RunningDev) -> None:
    response = post_json(dev, RUN, {"prompt": "x", "max_tokens": 1})
    assert response.status_code == 200
