"""Keeps an eye on an engine of others: is it there, is it fit, how busy is it.

What a supervisor is to a core of our own, but that it starts nothing. Owns readiness: nothing is
sent to an engine that was not checked since it was last gone. Must not know requests.
Read next: `engine_check`, `engine_load`, `upstream_model`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from contracts.errors import NodeUnreachable, StreamBroken
from contracts.fleet import ModelLoad
from contracts.kv_transfer import KvEndpoint
from gpu_pool.engine.messages import KvTiers
from gpu_pool.server.upstream.engine_check import Busy, EngineFacts, Unfit, check_engine
from gpu_pool.server.upstream.engine_link import EngineLink
from gpu_pool.server.upstream.engine_load import EngineLoad
from gpu_pool.server.upstream.engine_metrics import ScrapedLoad, read_metrics
from gpu_pool.server.upstream.traits import TRAITS
from gpu_pool.upstream_settings import UpstreamSettings

HEALTH_S: Final = 5.0
"""For one answer about health or load."""
MAX_SILENT_LOOKS: Final = 3
"""An engine at work may be slow to say that it is well; one that refuses connections is gone."""
UNSAID_WINDOW: Final = 4096
"""Of an engine that has not been there yet: a model without a context could not even be waited for.
"""
RECHECK_S: Final = 60.0
"""It may have been started anew with something else between two looks."""
DOUBT_S: Final = 1.0
"""The same once an answer has broken off, as all do when an engine ends."""


class EngineWatch:
    """One engine through all its lives; what computes a model, as the node sees it."""

    def __init__(
        self,
        settings: UpstreamSettings,
        link: EngineLink,
        load: EngineLoad,
        monotonic_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called whenever readiness changes."""
        self.settings: Final = settings
        self.load: Final = load
        self._link = link
        self._traits = TRAITS[settings.kind]
        self._monotonic_s = monotonic_s
        self._on_change = on_change
        self._facts: EngineFacts | None = None
        self._checked_s = 0.0
        self._is_in_doubt = False
        self._num_silent_looks = 0
        self._failure: str | None = None
        self._is_there = False
        self._look_again = asyncio.Event()
        self._log = structlog.get_logger().bind(model=settings.name)

    @property
    def is_ready(self) -> bool:
        """True while requests can be sent."""
        return self._is_there and self._failure is None and self._facts is not None

    @property
    def is_loading(self) -> bool:
        """True while it is waited for: somebody else starts it."""
        return not self.is_ready

    @property
    def failure(self) -> str | None:
        """Why it is not on offer though it answers; goes away by itself when that is mended."""
        return self._failure

    @property
    def kv_endpoint(self) -> KvEndpoint | None:
        """Its blocks stay where they are."""
        return None

    @property
    def kv_tiers(self) -> KvTiers:
        """What it keeps where is its own affair."""
        return KvTiers()

    @property
    def context_window(self) -> int:
        """Tokens; of one that was never there, as the settings have it, or a small one."""
        if self._facts is not None:
            return self._facts.context_window
        return self.settings.context_window or UNSAID_WINDOW

    def measure_load(self) -> ModelLoad:
        """How busy it is."""
        return self.load.describe(self.settings.name, is_ready=self.is_ready)

    def note_trouble(self) -> None:
        """A request could not be sent: nothing more is until it has been looked at."""
        self._set_there(is_there=False)
        self._look_again.set()

    def note_doubt(self) -> None:
        """An answer has broken off: the next look finds out whether it is still the same engine."""
        self._is_in_doubt = True

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        try:
            while True:
                await self._look()
                self._look_again.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.poll_s):
                        await self._look_again.wait()
                        await asyncio.sleep(min(0.1, self.settings.poll_s))
        finally:
            await self._link.close()

    async def _look(self) -> None:
        """One look: health, then load, then whether it is still the same engine."""
        try:
            status, _ = await self._link.fetch(self._traits.health_path, timeout_s=HEALTH_S)
            if status in (401, 403):
                raise Unfit(f"the engine refuses this node's key (status {status})")
            if status != 200:
                raise NodeUnreachable(f"its health has status {status}")
            scraped = await self._scrape()
            await self._check(scraped)
            self._num_silent_looks = 0
            self._set_failure(None)
            self._set_there(is_there=True)
            self.load.note_scraped(scraped)
        except Unfit as finding:
            self._set_failure(str(finding))
        except NodeUnreachable as error:
            self._set_there(is_there=False, reason=error.message)
        except StreamBroken as error:
            self._num_silent_looks += 1
            if self._num_silent_looks >= MAX_SILENT_LOOKS or not self._is_there:
                self._set_there(is_there=False, reason=error.message)
        except Exception as error:  # it may answer in ways nobody has thought of
            self._log.exception("an engine of others cannot be understood")
            self._set_there(is_there=False, reason=type(error).__name__)

    async def _check(self, scraped: ScrapedLoad | None) -> None:
        """Finds out what it is, when that is due. Raises: as `check_engine`, but for `Busy`."""
        now_s = self._monotonic_s()
        patience_s = DOUBT_S if self._is_in_doubt else RECHECK_S
        is_known = self.is_ready
        if is_known and now_s - self._checked_s < patience_s:
            return
        self._is_in_doubt = False
        try:
            known = self._facts if is_known else None
            self._facts = await check_engine(self._link, self.settings, scraped, known)
        except Busy as error:
            self._is_in_doubt = True  # it was fit, and is asked again at the next look
            if not is_known:
                raise NodeUnreachable(str(error)) from error
        except Exception:
            self._is_in_doubt = True
            raise
        else:
            self._checked_s = now_s

    async def _scrape(self) -> ScrapedLoad | None:
        """What its metrics say; None where they cannot be had, so that our own counts have to do.

        Raises: `NodeUnreachable`.
        """
        names = self._traits.metrics
        if names is None:
            return None
        try:
            status, page = await self._link.fetch("/metrics", timeout_s=HEALTH_S)
            text = page.decode() if status == 200 else ""
            return read_metrics(text, names, self.settings.served_name)
        except (StreamBroken, ValueError):  # `UnicodeDecodeError` is one
            return None

    def _set_there(self, *, is_there: bool, reason: str = "") -> None:
        """Takes note, and tells of a change."""
        was_ready = self.is_ready
        self._is_there = is_there
        if self.is_ready is was_ready:
            return
        if is_there:
            self._log.info("an engine of others is ready", kind=self.settings.kind)
        else:
            self._log.warning("an engine of others is gone", reason=reason)
        self._on_change()

    def _set_failure(self, failure: str | None) -> None:
        """The same for what makes it unfit."""
        if failure == self._failure:
            return
        self._failure = failure
        if failure is not None:
            self._log.error("an engine of others is not fit", reason=failure)
        self._on_change()
