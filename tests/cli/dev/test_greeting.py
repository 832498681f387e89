"""The printed lines are complete shell and Python, whatever stands in them."""

import ast
import json
import shlex
import sys
from pathlib import Path

import pytest

from cli.dev.greeting import (
    QUESTION,
    find_own_name,
    format_curl,
    format_greeting,
    format_openai_snippet,
)
from cli.dev.home import DevAccess

ACCESS = DevAccess(
    base_url="http://127.0.0.1:8787",
    admin_url="http://127.0.0.1:8788",
    account_id="0" * 32,
    api_token="hearth_pat_x",
    admin_token="hearth_op_y",
    models=("@hearth/tiny-chat", "@hub/second"),
)


def test_a_curl_line_survives_quotes_in_its_body() -> None:
    body = {"prompt": 'It\'s "quoted" $HOME `x`'}
    words = shlex.split(format_curl(ACCESS, "run/@hearth/tiny-chat", body))
    assert words[0] == "curl"
    assert json.loads(words[words.index("-d") + 1]) == body
    assert f"Authorization: Bearer {ACCESS.api_token}" in words


def test_every_curl_line_is_one_line_and_only_the_streamed_one_is_unbuffered() -> None:
    greeting = format_greeting(ACCESS, ".hearth")
    lines = [line for line in greeting.splitlines() if line.startswith("curl ")]
    assert ["-N" in shlex.split(line) for line in lines] == [False, True, False]
    assert greeting.count(QUESTION) == 4


def test_the_python_lines_parse() -> None:
    ast.parse(format_openai_snippet(ACCESS))


def test_the_chat_line_names_the_folder_unless_it_is_the_usual_one() -> None:
    assert "\nhearth chat\n" in format_greeting(ACCESS, ".hearth")
    assert "\nhearth chat --dir 'a b'\n" in format_greeting(ACCESS, "a b")


def test_the_chat_line_can_be_pasted_where_the_shell_does_not_know_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / ".venv" / "bin" / "hearth"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(own), "dev"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert f"\n{own} chat\n" in format_greeting(ACCESS, ".hearth", find_own_name())
    monkeypatch.setenv("PATH", str(own.parent))
    assert find_own_name() == "hearth"
    monkeypatch.setattr("sys.argv", ["/somewhere/cli/__main__.py", "dev"])
    assert find_own_name() == f"{sys.executable} -m cli"


def test_the_operators_credential_is_not_printed() -> None:
    assert ACCESS.admin_token not in format_greeting(ACCESS, ".hearth")


def test_the_console_s_address_is_told() -> None:
    assert "http://127.0.0.1:8788/console " in format_greeting(ACCESS, ".hearth")
