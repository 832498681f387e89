"""Which account's API a command talks to: options, the environment, or a running `hearth dev`.

Must not know what is asked there. Read next: `cli.chat_client`, `cli.finetune_client`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.dev.home import DevHome
from cli.terminal import CommandFailed

API_TOKEN_VARIABLE: Final = "HEARTH_API_TOKEN"


@dataclass(frozen=True, slots=True)
class AccountAccess:
    """An account of a gateway and the API token for it."""

    base_url: str
    account_id: str
    api_token: str


def find_access(base_url: str | None, account_id: str | None, directory: Path) -> AccountAccess:
    """What the options say, completed from the environment and from `dev.json` in `directory`.

    Raises: `CommandFailed` that names what is missing.
    """
    access = None if base_url else DevHome(directory).read_access()
    if access is None and base_url is None:
        raise CommandFailed(
            f"There is no {directory}/dev.json. Start `hearth dev` here first, or give --base-url."
        )
    url = base_url or (access.base_url if access else "")
    account = account_id or (access.account_id if access else None)
    api_token = os.environ.get(API_TOKEN_VARIABLE) or (access.api_token if access else None)
    if account is None:
        raise CommandFailed("With --base-url, give --account-id too.")
    if api_token is None:
        raise CommandFailed(f"With --base-url, put the API token into {API_TOKEN_VARIABLE}.")
    return AccountAccess(url, account, api_token)
