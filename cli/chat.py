"""`hearth chat`: a conversation at the terminal.

Owns the prompt, the history and what Ctrl-C means; must not know how answers travel.
Read next: `cli.chat_client`.
"""

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.account_access import find_access
from cli.chat_client import ChatClient, ChatTurn
from cli.terminal import CommandFailed, is_interactive, print_failure

_HELP: Final = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer."


def chat(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model; the first one on offer if left out.")
    ] = None,
    once: Annotated[
        str | None, typer.Option("--once", help="Ask this, print the answer and leave.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="Instructions that open the conversation.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="Origin, such as https://hearth.example.com.")
    ] = None,
    account_id: Annotated[str | None, typer.Option("--account-id", help="32 hex digits.")] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="State folder of a `hearth dev`.")
    ] = Path(".hearth"),
) -> None:
    """Talk to a model.

    Next to a running `hearth dev` it needs no options. Elsewhere: `--base-url`, `--account-id`
    and the API token in the variable `HEARTH_API_TOKEN`.

    Examples: `hearth chat`, `hearth chat --once "What is a KV cache?"`,
    `echo "Tell me a story" | hearth chat`
    """
    with open_client(base_url, account_id, directory) as client:
        conversation = Conversation(client, model or client.find_default_model(), system)
        if once is not None:
            conversation.ask(once)
        elif is_interactive():
            _talk(conversation)
        else:
            for line in sys.stdin:
                if line.strip() and not conversation.obey(line.strip()):
                    break


def open_client(base_url: str | None, account_id: str | None, directory: Path) -> ChatClient:
    """A client from the options, completed from the environment and from `dev.json`.

    Raises: `CommandFailed` that names what is missing.
    """
    access = find_access(base_url, account_id, directory)
    return ChatClient(access.base_url, access.account_id, access.api_token)


class Conversation:
    """The turns so far and how the next answer is shown."""

    def __init__(self, client: ChatClient, model: str, system: str | None) -> None:
        self.model = model
        self._client = client
        self._opening = [ChatTurn("system", system)] if system else []
        self._turns = list(self._opening)

    def obey(self, line: str) -> bool:
        """Carries out a command or asks a question; False when the person wants to leave."""
        if line in ("/exit", "/quit"):
            return False
        if line == "/reset":
            self._turns = list(self._opening)
            print("The conversation starts anew.")
        elif line.startswith("/"):
            print(_HELP)
        else:
            self.ask(line)
        return True

    def ask(self, question: str) -> None:
        """Prints the answer as it comes. Ctrl-C ends it early; what came stays in the history."""
        # A question whose answer fails leaves no trace: `_turns` changes at the end.
        turns = [*self._turns, ChatTurn("user", question)]
        pieces: list[str] = []
        try:
            for piece in self._client.stream_answer(self.model, turns):
                pieces.append(piece)
                print(piece, end="", flush=True)
            print()
        except KeyboardInterrupt:
            print(" (stopped)", flush=True)
        self._turns = [*turns, ChatTurn("assistant", "".join(pieces))]


def _talk(conversation: Conversation) -> None:
    """Reads questions until the person leaves; one that fails does not end the conversation."""
    with suppress(ImportError):  # not every Python has it
        importlib.import_module("readline")  # gives `input` its line editing and history
    print(f"{conversation.model}. {_HELP}")
    while True:
        try:
            line = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        try:
            if line and not conversation.obey(line):
                return
        except CommandFailed as error:
            print_failure(error)
