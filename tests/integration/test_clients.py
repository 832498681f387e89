"""Real clients against a running `hearth dev`: cloudflare, openai and curl."""

import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import openai
import pytest
from cloudflare import Cloudflare

from tests.integration.account_client import MODEL
from tests.integration.running_dev import RunningDev

QUESTION = "What is Hearth?"


@pytest.fixture
def cloudflare_client(dev: RunningDev) -> Iterator[Cloudflare]:
    base_url = f"{dev.access.base_url}/client/v4"
    with Cloudflare(api_token=dev.access.api_token, base_url=base_url) as client:
        yield client


@pytest.fixture
def openai_client(dev: RunningDev) -> Iterator[openai.OpenAI]:
    base_url = f"{dev.account_url}/ai/v1"
    with openai.OpenAI(base_url=base_url, api_key=dev.access.api_token) as client:
        yield client


def test_cloudflare_runs_a_model_by_prompt_and_by_messages(
    dev: RunningDev, cloudflare_client: Cloudflare
) -> None:
    account_id = dev.access.account_id
    by_prompt = cloudflare_client.ai.run(
        MODEL, account_id=account_id, prompt=QUESTION, temperature=0
    )
    messages = [{"role": "user", "content": QUESTION}]
    by_messages = cloudflare_client.ai.run(
        MODEL, account_id=account_id, messages=messages, temperature=0
    )
    assert isinstance(by_prompt, dict)
    assert by_prompt["response"]
    usage = by_prompt["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert by_prompt["response"] == by_messages["response"]  # pyright: ignore


def test_cloudflare_lists_models_to_the_end(dev: RunningDev, cloudflare_client: Cloudflare) -> None:
    names = [
        model["name"] if isinstance(model, dict) else model.name  # pyright: ignore
        for model in cloudflare_client.ai.models.list(account_id=dev.access.account_id)
    ]
    assert names == [MODEL]


def test_cloudflare_verifies_its_token(dev: RunningDev, cloudflare_client: Cloudflare) -> None:
    verified = cloudflare_client.user.tokens.verify()
    assert verified is not None
    assert verified.status == "active"


def test_cloudflare_sees_an_unknown_model_as_error_5007(
    dev: RunningDev, cloudflare_client: Cloudflare
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # its class is checked below
        cloudflare_client.ai.run("@hearth/nothing", account_id=dev.access.account_id, prompt="x")
    assert type(caught.value).__name__ == "BadRequestError"
    assert caught.value.errors[0].code == 5007  # pyright: ignore


def test_openai_answers_alike_with_and_without_a_stream(openai_client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    whole = openai_client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_tokens=40,  # pyright: ignore
    )
    stream = openai_client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_tokens=40,
        stream=True,  # pyright: ignore
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert text == whole.choices[0].message.content
    assert reasons == [whole.choices[0].finish_reason]
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_openai_completes_several_prompts_at_once(openai_client: openai.OpenAI) -> None:
    prompts = ["Hearth is", "The sum of two and two is", "A node"]

    def complete(prompt: str | list[str]) -> openai.types.Completion:
        return openai_client.completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=12
        )

    whole = complete(prompts)
    alone = [complete(prompt) for prompt in prompts]
    assert [choice.text for choice in whole.choices] == [one.choices[0].text for one in alone]
    assert whole.usage is not None
    total = sum(one.usage.total_tokens for one in alone if one.usage is not None)
    assert whole.usage.total_tokens == total
    stream = openai_client.completions.create(
        model=MODEL, prompt=prompts, temperature=0, max_tokens=12, stream=True
    )
    texts = ["", "", ""]
    for choice in [choice for event in stream for choice in event.choices]:
        texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_openai_lists_models(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == [MODEL]


def test_openai_sees_a_bad_key_as_an_authentication_error(dev: RunningDev) -> None:
    base_url = f"{dev.account_url}/ai/v1"
    with (
        openai.OpenAI(base_url=base_url, api_key="hearth_wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.status_code == 401


def test_the_printed_curl_lines_work_as_printed(dev: RunningDev) -> None:
    lines = [line for line in dev.read_output().splitlines() if line.startswith("curl ")]
    native, streamed, openai_line = (run_shell(line) for line in lines)

    answer = json.loads(native)
    assert answer["success"] is True
    assert answer["result"]["response"]

    events = [line for line in streamed.splitlines() if line]
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["usage"]["completion_tokens"] > 0
    deltas = [json.loads(event.removeprefix("data: "))["response"] for event in events[:-1]]
    assert "".join(deltas)

    assert json.loads(openai_line)["choices"][0]["message"]["content"]


def test_the_printed_python_lines_work_as_printed(
    dev: RunningDev,
) -> None:
    output = dev.read_output()
    begin = output.index("from openai import OpenAI")
    program = output[begin : output.index("\n\n", begin)]
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.parametrize("path", [f"run/{MODEL}", "run/@hearth%2Ftiny-chat", "run"])
def test_every_spelling_of_the_native_route_answers_alike(dev: RunningDev, path: str) -> None:
    body: dict[str, object] = {"prompt": QUESTION, "temperature": 0, "max_tokens": 24}
    response = httpx.post(
        f"{dev.account_url}/ai/{path}",
        headers={"Authorization": f"Bearer {dev.access.api_token}"},
        json={"model": MODEL, "input": body} if path == "run" else body,
        timeout=60,
    )
    reference = httpx.post(
        f"{dev.account_url}/ai/run/{MODEL}",
        headers={"Authorization": f"Bearer {dev.access.api_token}"},
        content=json.dumps(body),  # no JSON content type, as from `curl -d`
        timeout=60,
    )
    assert response.status_code == 200, response.text
    assert response.json()["result"]["response"] == reference.json()["result"]["response"]


def run_shell(line: str) -> str:
    """What the pasted line prints."""
    result = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
