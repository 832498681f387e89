"""The routes of finetunes as `hearth finetunes` uses them.

Owns the HTTP of one client; files are sent as they are read. Must not know the terminal. Read next:
`gateway.api.finetune_pages`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import msgspec

from cli.account_access import AccountAccess
from cli.terminal import CommandFailed, fail_to_connect

_CONNECT_TIMEOUT_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 120.0
"""The last pieces of an upload are stored before it is answered."""


class ListedFinetune(msgspec.Struct, frozen=True, kw_only=True):
    """A finetune as the API tells of it."""

    id: str
    name: str
    model: str
    public: bool
    ready: bool
    created_at: str
    description: str | None = None
    rank: int | None = None
    num_bytes: int | None = None


class FinetuneClient:
    """Talks to one account of one gateway. Used as a context manager."""

    def __init__(self, access: AccountAccess) -> None:
        """The base URL is an origin, with or without the path `/client/v4`."""
        import httpx  # here, for it takes a third of the time that `hearth --help` may take

        self._origin = access.base_url.rstrip("/").removesuffix("/client/v4")
        self._connection_errors = (httpx.HTTPError, httpx.InvalidURL)
        self._http = httpx.Client(
            base_url=f"{self._origin}/client/v4/accounts/{access.account_id}/ai/",
            headers={"Authorization": f"Bearer {access.api_token}"},
            timeout=httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
        )

    def __enter__(self) -> "FinetuneClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def list_all(self) -> list[ListedFinetune]:
        """All of the account, oldest first. Raises: `CommandFailed`, as all of these."""
        return msgspec.convert(self._ask("GET", "finetunes"), list[ListedFinetune])

    def create(
        self, name: str, model: str, description: str | None, *, is_public: bool
    ) -> ListedFinetune:
        """The new finetune, without files."""
        body = {"name": name, "model": model, "description": description, "public": is_public}
        return msgspec.convert(self._ask("POST", "finetunes", json=body), ListedFinetune)

    def upload(self, name: str, file: Path, report: Callable[[int, int], None]) -> None:
        """Sends a file, which has one of the two names; `report` hears of bytes sent and in all."""
        try:
            with file.open("rb") as opened:
                told = _ToldFile(opened, file.stat().st_size, report)
                self._ask(
                    "POST",
                    f"finetunes/{quote(name, safe='')}/finetune-assets",
                    data={"file_name": file.name},
                    files={"file": (file.name, told, "application/octet-stream")},
                )
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read: {error.strerror}.") from error

    def delete(self, name: str) -> str:
        """The id of a finetune that is no more."""
        return str(self._ask("DELETE", f"finetunes/{quote(name, safe='')}")["id"])

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        """The result of a request. Raises: `CommandFailed` with the server's own sentence."""
        try:
            response = self._http.request(method, path, **content)
        except self._connection_errors as error:
            raise fail_to_connect(self._origin, error) from error
        try:
            answer: dict[str, Any] = msgspec.json.decode(response.content)
            if response.status_code < 400:
                return answer["result"]
            sentence = str(answer["errors"][0]["message"])
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
            sentence = response.text[:200]
        raise CommandFailed(f"{sentence} (HTTP {response.status_code})")


class _ToldFile:
    """A file that tells how far it has been read."""

    def __init__(self, file: BinaryIO, size: int, report: Callable[[int, int], None]) -> None:
        self._file = file
        self._size = size
        self._report = report

    def read(self, num_bytes: int = -1) -> bytes:
        """The next bytes."""
        data = self._file.read(num_bytes)
        self._report(self._file.tell(), self._size)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Goes elsewhere."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Where it is."""
        return self._file.tell()

    def __iter__(self) -> "_ToldFile":
        """Pieces, to those who ask for these."""
        return self

    def __next__(self) -> bytes:
        data = self.read(64 * 1024)
        if not data:
            raise StopIteration
        return data
