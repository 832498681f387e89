"""`hearth chat` as a real process: answers, history, Ctrl-C, failures."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.dev.home import DevAccess, DevHome
from tests.cli.chat_server import ACCOUNT_ID, API_TOKEN, ChatScript, serve_chat

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "cli", "chat")


@pytest.fixture
def script() -> ChatScript:
    return ChatScript()


@pytest.fixture
def origin(script: ChatScript) -> Iterator[str]:
    with serve_chat(script) as origin:
        yield origin


@pytest.fixture
def home(tmp_path: Path, origin: str) -> DevHome:
    home = DevHome(tmp_path)
    models = ("@hearth/tiny-chat",)
    access = DevAccess(
        base_url=origin,
        admin_url=origin,
        account_id=ACCOUNT_ID,
        api_token=API_TOKEN,
        admin_token="",
        models=models,
    )
    home.write_access(access)
    return home


def run(*arguments: object, text: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=text,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, **environ},
    )


def test_once_prints_the_answer_and_nothing_else(home: DevHome, script: ChatScript) -> None:
    result = run("--dir", home.root, "--once", "Hi")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Hello there.\n", "")
    assert script.bodies[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert script.bodies[0]["stream"] is True


def test_lines_from_a_pipe_are_one_conversation_until_reset(
    home: DevHome, script: ChatScript
) -> None:
    text = "one\ntwo\n/reset\nthree\n/exit\nfour\n"
    result = run("--dir", home.root, "--system", "Be kind.", text=text)
    assert result.returncode == 0
    contents = [[turn["content"] for turn in body["messages"]] for body in script.bodies]
    assert contents == [
        ["Be kind.", "one"],
        ["Be kind.", "one", "Hello there.", "two"],
        ["Be kind.", "three"],
    ]


def test_elsewhere_the_options_and_the_variable_say_where(origin: str) -> None:
    arguments = ("--base-url", origin, "--account-id", ACCOUNT_ID, "--once", "Hi")
    assert run(*arguments, HEARTH_API_TOKEN=API_TOKEN).stdout == "Hello there.\n"
    refused = run(*arguments, HEARTH_API_TOKEN="wrong")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "hearth: The API token is unknown. (HTTP 401)\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--once", "Hi"), "Start `hearth dev` here first"),
        (("--base-url", "http://127.0.0.1:9"), "--account-id"),
        (("--base-url", "http://127.0.0.1:9", "--account-id", "a"), "HEARTH_API_TOKEN"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    result = run("--dir", tmp_path, *arguments, HEARTH_API_TOKEN="")
    assert result.returncode == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_that_is_not_there_is_named() -> None:
    arguments = ("--base-url", "http://127.0.0.1:9", "--account-id", ACCOUNT_ID, "--once", "Hi")
    result = run(*arguments, HEARTH_API_TOKEN="x")
    assert result.returncode == 1
    assert "No answer from http://127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ("", "the connection ended before it did"),
        ('data: {"error": {"message": "The node failed."}}\n\n', "The node failed."),
    ],
)
def test_an_answer_that_breaks_off_is_a_failure(
    home: DevHome, script: ChatScript, ending: str, sentence: str
) -> None:
    script.ending = ending
    result = run("--dir", home.root, "--once", "Hi")
    assert result.returncode == 1
    assert result.stdout == "Hello there."
    assert sentence in result.stderr


def test_an_unknown_model_is_refused_with_the_servers_sentence(home: DevHome) -> None:
    result = run("--dir", home.root, "--model", "@x/y", "--once", "Hi")
    assert (result.returncode, result.stderr) == (1, "hearth: No such model. (HTTP 400)\n")


class Terminal:
    """`hearth chat` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._descriptor, slave = pty.openpty()
        # A child takes over ignored signals, and background jobs of a shell ignore this one.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT
        )
        signal.signal(signal.SIGINT, before)
        os.close(slave)
        self._output = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._descriptor)

    def type(self, text: str) -> None:
        """Sends `text` as typed keys."""
        os.write(self._descriptor, text.encode())

    def press_ctrl_c(self) -> None:
        """Does what the terminal does at Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def wait_for(self, text: str) -> None:
        """Returns when `text` has appeared since the last call."""
        deadline = time.monotonic() + 30
        while text not in self._output:
            assert time.monotonic() < deadline, self._output
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self._output += os.read(self._descriptor, 1 << 16).decode()
        self._output = self._output.partition(text)[2]

    def leave_with_ctrl_c(self) -> int:
        """The exit code. Pressed again if need be: one before readline waits for keys is lost."""
        for _ in range(30):
            self.press_ctrl_c()
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(timeout=1)
        raise AssertionError(self._output)

    def wait_for_end(self) -> int:
        """The exit code."""
        return self._process.wait(timeout=30)


def test_ctrl_c_stops_the_answer_on_the_server_and_a_second_one_leaves(
    home: DevHome, script: ChatScript
) -> None:
    script.endless = True
    with Terminal("--dir", str(home.root)) as terminal:
        terminal.wait_for("> ")
        terminal.type("Tell me a story\n")
        terminal.wait_for("Hello there.")
        assert not script.was_cancelled.is_set()
        terminal.press_ctrl_c()
        terminal.wait_for("(stopped)")
        assert script.was_cancelled.wait(20)
        script.endless = False
        terminal.wait_for("> ")
        terminal.type("Go on\n")
        terminal.wait_for("Hello there.")
        assert script.bodies[1]["messages"][1]["content"].startswith("Hello there.")
        terminal.wait_for("> ")
        assert terminal.leave_with_ctrl_c() == 0


def test_a_question_that_fails_does_not_end_the_conversation(
    home: DevHome, script: ChatScript
) -> None:
    script.ending = ""
    with Terminal("--dir", str(home.root)) as terminal:
        terminal.wait_for("> ")
        terminal.type("One\n")
        terminal.wait_for("broke off")
        script.ending = "data: [DONE]\n\n"
        terminal.wait_for("> ")
        terminal.type("Two\n")
        terminal.wait_for("Hello there.")
        assert len(script.bodies[1]["messages"]) == 1
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.wait_for_end() == 0
