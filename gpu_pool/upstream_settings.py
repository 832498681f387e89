"""The settings of a model that an engine of others computes: vLLM, SGLang, anything like them.

Owns names, defaults and ranges; must not know HTTP. Read next: `gpu_pool.server.upstream`,
`docs/operations.md` (examples).
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from contracts.fleet import ModelFeature
from contracts.ids import ModelName, is_model_name

_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_NO_WORD_ON_CACHE: Final = (
    "`prefix_cache` must be said: `salted` where the engine takes a `cache_salt` with each request "
    "(vLLM 0.9 and SGLang of mid 2026 do), `off` where it was started without prefix caching "
    "(vLLM: --no-enable-prefix-caching, SGLang: --disable-radix-cache). A cache that all accounts "
    "share lets each find out, by timing, what the others have asked"
)


class EngineKind(StrEnum):
    """Whose engine it is: what it understands and tells beyond what all have in common."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    """Any server with `/v1/chat/completions`: what OpenAI's own reference describes, no more."""


class PrefixCache(StrEnum):
    """How the engine keeps accounts apart that send it the same prompt."""

    UNSAID = ""
    """Refused: there is no default that could not leak."""
    SALTED = "salted"
    """It has a cache and takes a salt with each request; that is tried out before it serves."""
    OFF = "off"
    """It has none; where it tells, that is checked."""


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A model behind this node that an engine of others computes, over HTTP. Units: seconds."""

    name: ModelName
    """As clients know it."""
    url: str
    """Where the engine listens, without `/v1`: `http://127.0.0.1:8000`."""
    kind: EngineKind
    served_name: str
    """What the engine calls the model: an `id` of its `/v1/models`."""
    prefix_cache: PrefixCache = PrefixCache.UNSAID
    """How accounts are kept apart in its cache; has to be said."""
    keeps_nothing: bool = False
    """The operator's word that nothing of a prompt or an answer stays at the engine: no log of
    requests, no cache beyond the device. Without it, accounts with retention `none` are refused."""
    context_window: _Positive | None = None
    """Tokens; None takes what the engine says of itself, which `openai` servers do not."""
    max_running: _Positive = 64
    """Requests that this node has there at the same time; what comes beyond waits in gateways."""
    features: tuple[ModelFeature, ...] = ()
    """What it was started for beyond text: `function_calling`, `reasoning`."""
    description: str = ""
    api_key_file: Path | None = None
    """The key that the engine asks for, if it does; mode 0600."""
    ca_file: Path | None = None
    """Whose word on its certificate is believed, where that is not the system's."""
    connect_s: _Seconds = 2.0
    silence_s: _Seconds = 60.0
    """How long it may say nothing while it has a request: its line and the prompt included."""
    poll_s: _Seconds = 1.0
    """Between two looks at its health and load."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for what cannot work, or would not keep accounts apart."""
        if not is_model_name(self.name):
            raise ValueError("a model's name looks like `@scope/author/name`")
        if not self.served_name:
            raise ValueError("`served_name` is what the engine calls the model")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("`url` must be http://host:port or https://…")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("`url` has no name, password or query; the key goes in `api_key_file`")
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError("`url` ends before `/v1`")
        if self.prefix_cache is PrefixCache.UNSAID:
            raise ValueError(_NO_WORD_ON_CACHE)
        if self.kind is EngineKind.OPENAI and self.context_window is None:
            raise ValueError("`context_window` must be said of an `openai` server: it tells none")
