"""The lines that `hearth dev` prints when it is ready, each complete in itself.

Owns the examples; must not know how the parts were started. The lines are printed as they stand,
never wrapped or coloured, so that they can be pasted (tests do just that).
"""

import json
import os
import shlex
import shutil
import sys
from typing import Any

from cli.dev.home import DevAccess

QUESTION = "What is Hearth?"


def format_greeting(access: DevAccess, home: str, hearth: str = "hearth") -> str:
    """The whole greeting; `home` is the state folder as the person named it, `hearth` what the
    command is called in their shell."""
    model = access.models[0]
    messages = [{"role": "user", "content": QUESTION}]
    chat = f"{hearth} chat" if home == ".hearth" else f"{hearth} chat --dir {shlex.quote(home)}"
    return "\n".join(
        [
            "",
            "Hearth is ready. Ctrl-C stops it.",
            "",
            f"  API      {access.base_url}/client/v4   (your own Workers AI)",
            f"  Console  {access.admin_url}/console   (sign in with admin_token of dev.json)",
            f"  Models   {', '.join(access.models)}",
            f"  Access   {home}/dev.json",
            "",
            "Ask, as on Workers AI:",
            "",
            format_curl(access, f"run/{model}", {"messages": messages}),
            "",
            "Ask and read the answer as it is made:",
            "",
            format_curl(access, f"run/{model}", {"messages": messages, "stream": True}),
            "",
            "Ask through the OpenAI route:",
            "",
            format_curl(access, "v1/chat/completions", {"model": model, "messages": messages}),
            "",
            "Ask from Python (pip install openai):",
            "",
            format_openai_snippet(access),
            "",
            "Talk to it from a second terminal:",
            "",
            chat,
            "",
        ]
    )


def format_curl(access: DevAccess, route: str, body: dict[str, Any]) -> str:
    """One line of shell that posts `body` below the account's `ai/` routes."""
    buffering = "-N " if body.get("stream") else ""
    url = f"{access.base_url}/client/v4/accounts/{access.account_id}/ai/{route}"
    return (
        f"curl -sS {buffering}{shlex.quote(url)} "
        f"-H {shlex.quote(f'Authorization: Bearer {access.api_token}')} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def format_openai_snippet(access: DevAccess) -> str:
    """A Python program for the `openai` package that streams an answer."""
    base_url = f"{access.base_url}/client/v4/accounts/{access.account_id}/ai/v1"
    return f"""\
from openai import OpenAI
client = OpenAI(base_url="{base_url}", api_key="{access.api_token}")
stream = client.chat.completions.create(model="{access.models[0]}", stream=True,
    messages=[{{"role": "user", "content": "{QUESTION}"}}])
for chunk in stream:
    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
print()"""


def find_own_name() -> str:
    """What to type for the command that runs: `hearth` where the shell finds it by that name."""
    path = sys.argv[0]
    if path.endswith("__main__.py"):
        return f"{shlex.quote(sys.executable)} -m cli"
    found = shutil.which("hearth")
    if os.sep not in path or (found is not None and os.path.samefile(found, path)):
        return "hearth"
    return shlex.quote(path)
