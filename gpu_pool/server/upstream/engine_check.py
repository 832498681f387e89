"""Whether an engine is the one that the settings describe, before it gets a request.

Asks for its models, its window and how its prefix cache keeps accounts apart: the operator's word
is tried out where the engine can show otherwise. Must not know when this is asked.
Read next: `engine_watch` (the caller), `docs/operations.md`.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gpu_pool.server.upstream.engine_errors import BUSY, quote_words
from gpu_pool.server.upstream.engine_link import EngineLink
from gpu_pool.server.upstream.engine_metrics import ScrapedLoad
from gpu_pool.server.upstream.traits import CHAT_PATH, MODELS_PATH, TEXT_PATH, TRAITS
from gpu_pool.upstream_settings import PrefixCache, UpstreamSettings

_TRIAL_S: Final = 30.0
"""For one token of an idle engine, the first of its life included."""
_SALT: Final = "of a trial"
_NO_SALT: Final = 0
"""No engine that reads `cache_salt` takes a number for it."""


class _Card(msgspec.Struct, frozen=True):
    """A model of the engine's list."""

    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    """`/v1/models`."""

    data: list[_Card]


class _Info(msgspec.Struct, frozen=True):
    """How an engine says it was started."""

    disable_radix_cache: bool | None = None


class Unfit(Exception):
    """The engine is not what the settings say; the message is for operators."""


class Busy(Exception):
    """The engine cannot be tried out now: it has as much to do as it takes."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine that is fit has said of itself."""

    context_window: int
    trial_path: str = ""
    """Where salts were tried out; empty: nowhere."""


async def check_engine(
    link: EngineLink,
    settings: UpstreamSettings,
    scraped: ScrapedLoad | None,
    known: EngineFacts | None,
) -> EngineFacts:
    """What the engine is; `known` is what it was found to be, if it has not been gone since.

    Raises: `Unfit`, `Busy`, `NodeUnreachable`, `StreamBroken`.
    """
    card = await _find_card(link, settings)
    window = _choose_window(settings, card)
    if settings.prefix_cache is PrefixCache.OFF:
        await _check_no_cache(link, settings, scraped)
        return EngineFacts(window)
    return EngineFacts(window, await _check_salts(link, settings, known))


async def _find_card(link: EngineLink, settings: UpstreamSettings) -> _Card:
    """The model in the engine's list. Raises: `Unfit`."""
    status, page = await link.fetch(MODELS_PATH, timeout_s=_TRIAL_S)
    if status in (401, 403):
        raise Unfit(f"the engine refuses this node's key (status {status}): see `api_key_file`")
    if status != 200:
        raise Unfit(f"{MODELS_PATH} of the engine answers with status {status}")
    try:
        cards = msgspec.json.decode(page, type=_ModelList).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unfit(f"{MODELS_PATH} of the engine is no list of models") from error
    for card in cards:
        if card.id == settings.served_name:
            return card
    names = sorted(quote_words(card.id[:80], link.secrets) for card in cards)
    known = ", ".join(names[:8]) or "none"
    raise Unfit(f"the engine has no model `{settings.served_name}`; it has: {known}")


def _choose_window(settings: UpstreamSettings, card: _Card) -> int:
    """Tokens of the context. Raises: `Unfit`."""
    told, wanted = card.max_model_len, settings.context_window
    if told is not None and not 0 < told < 2**31:
        told = None
    if wanted is None and told is None:
        raise Unfit("the engine does not say how long its context is: set `context_window`")
    if wanted is not None and told is not None and wanted > told:
        raise Unfit(f"`context_window` is {wanted}, but the engine's is {told}")
    window = wanted if wanted is not None else told
    assert window is not None
    return window


async def _check_no_cache(
    link: EngineLink, settings: UpstreamSettings, scraped: ScrapedLoad | None
) -> None:
    """Raises `Unfit` where the engine says that it does keep prefixes."""
    has_cache = scraped.has_prefix_cache if scraped is not None else None
    for path in TRAITS[settings.kind].info_paths:
        told = await _ask_for_cache(link, path)
        has_cache = has_cache if told is None else told
    if has_cache:
        raise Unfit(
            "`prefix_cache` is `off`, but the engine says that it keeps prefixes: start it "
            "without (vLLM: --no-enable-prefix-caching, SGLang: --disable-radix-cache)"
        )


async def _ask_for_cache(link: EngineLink, path: str) -> bool | None:
    """Whether the engine keeps prefixes; None where it does not say."""
    status, page = await link.fetch(path, timeout_s=_TRIAL_S)
    try:
        info = msgspec.json.decode(page, type=_Info) if status == 200 else _Info()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if info.disable_radix_cache is None else not info.disable_radix_cache


async def _check_salts(
    link: EngineLink, settings: UpstreamSettings, known: EngineFacts | None
) -> str:
    """Where salts were tried out. Raises `Unfit` where the engine does not read `cache_salt`: it
    would share what it keeps.

    An engine passes over fields that it does not know, or refuses them whatever is in them. One
    that knows this one takes a text in it and refuses a number. An engine that is `known` has taken
    a text, and is not asked to compute for it while it may have more to do than it can.
    """
    path = await _find_trial_path(link, settings) if known is None else known.trial_path
    status, _ = await _try_out(link, settings, path, _NO_SALT)
    if status not in (400, 422):
        raise Unfit(
            f"`prefix_cache` is `salted`, but the engine does not read `cache_salt` (status "
            f"{status} to one that is no text): accounts would share its cache. Take a newer "
            "version, or start it without prefix caching and say `off`"
        )
    return path


async def _find_trial_path(link: EngineLink, settings: UpstreamSettings) -> str:
    """Where the engine serves a request with a salt. Raises: `Unfit`, `Busy`."""
    status, page = 0, b""
    for path in (CHAT_PATH, TEXT_PATH):  # models without a template of their own refuse chats
        status, page = await _try_out(link, settings, path, _SALT)
        if status == 200:
            return path
    words = quote_words(page[:1000].decode(errors="replace"), link.secrets)
    raise Unfit(f"the engine refuses a request with a salt with status {status}: {words}")


async def _try_out(
    link: EngineLink, settings: UpstreamSettings, path: str, salt: str | int
) -> tuple[int, bytes]:
    """How the engine answers the smallest request there is on `path`. Raises: `Busy`."""
    message = {"role": "user", "content": "Hello"}
    prompt = {"messages": [message]} if path == CHAT_PATH else {"prompt": "Hello"}
    body = {"model": settings.served_name, "max_tokens": 1, **prompt, "cache_salt": salt}
    status, page = await link.fetch(path, msgspec.json.encode(body), timeout_s=_TRIAL_S)
    if status in BUSY:
        raise Busy("the engine takes no more requests at the moment")
    return status, page
