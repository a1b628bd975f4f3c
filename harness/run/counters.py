"""Read an engine's counters when it is quiet, and say how it became so.

The adapter knows what quiet means. An engine that cannot tell is waited for until two scrapes a
second apart are equal, and the snapshot says `quiet` None; so is one that may be quiet before it
has counted its last request. Polling is throttled: it is never part of a timed window, but it must
not keep a CPU engine busy either.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import httpx
from asyncio_throttle.throttler import Throttler

from harness.adapters import Adapter
from harness.records import Counters, Snapshot, Where

POLLS_PER_S = 20
EQUAL_SCRAPES_APART_S = 1.0


class CounterReader:
    """Snapshots of one engine; keeps the last whole page.

    metrics_urls: the pages of the workers behind one server, to be summed; without any, the
    engine's own.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        adapter: Adapter,
        *,
        metrics_urls: Sequence[str] = (),
        patience_s: float = 30.0,
    ):
        self._http = http
        self._adapter = adapter
        self._metrics = tuple(metrics_urls) or (adapter.metrics_path,)
        self._patience_s = patience_s
        self._throttler = Throttler(rate_limit=1, period=1 / POLLS_PER_S)
        self.last_page: str | None = None

    async def snapshot(
        self,
        where: Where,
        scope: Literal["request", "repetition"],
        moment: Literal["before", "after"],
    ) -> Snapshot:
        began_s = time.perf_counter()
        quiet, counters, error = None, None, None
        try:
            quiet = await self._settled()
            counters = await self._scrape()
        except httpx.HTTPError as failure:
            error = f"{self._shown(failure.request.url)} cannot be read: {_told(failure)}"
        else:
            if counters is None:
                error = f"no series of {self._adapter.name} at {', '.join(self._metrics)}"
        return Snapshot(
            where=where,
            scope=scope,
            moment=moment,
            at_ns=time.perf_counter_ns(),
            quiet=quiet,
            settle_s=time.perf_counter() - began_s,
            counters=counters,
            error=error,
        )

    async def _settled(self) -> bool | None:
        """True when quiet, False when patience ran out, None when the engine cannot tell but its
        counters stood still.
        """
        deadline_s = time.perf_counter() + self._patience_s
        while True:
            async with self._throttler:
                quiet = await self._ask_quiet()
            if quiet is None or (quiet and not self._adapter.counts_before_idle):
                return quiet if await self._stands_still(deadline_s) else False
            if quiet or time.perf_counter() > deadline_s:
                return quiet

    async def _ask_quiet(self) -> bool | None:
        adapter = self._adapter
        if adapter.quiet_path == adapter.metrics_path:
            return adapter.quiet(await self._pages())
        try:
            return adapter.quiet(await self._get(adapter.quiet_path))
        except httpx.HTTPStatusError:
            return None  # a server that was started without this page cannot tell

    async def _stands_still(self, deadline_s: float) -> bool:
        """Whether two scrapes in a row were equal in time; no counters at all are equal too."""
        before = await self._scrape()
        while before is not None:
            if time.perf_counter() > deadline_s:
                return False
            await asyncio.sleep(EQUAL_SCRAPES_APART_S)
            now = await self._scrape()
            if now == before:
                return True
            before = now
        return True

    async def _scrape(self) -> Counters | None:
        self.last_page = await self._pages()
        return self._adapter.read_counters(self.last_page)

    async def _pages(self) -> str:
        """All pages as one, as if their workers were the engines of one page."""
        return "\n".join([await self._get(url) for url in self._metrics])

    async def _get(self, path: str) -> str:
        response = await self._http.get(path)
        response.raise_for_status()
        return response.text

    def _shown(self, url: httpx.URL) -> str:
        """As the engine's file names it: a path of the engine, or a whole address."""
        return str(url) if str(url) in self._metrics else url.path


def _told(failure: httpx.HTTPError) -> str:
    if isinstance(failure, httpx.HTTPStatusError):
        return f"HTTP {failure.response.status_code}"
    return str(failure) or type(failure).__name__
