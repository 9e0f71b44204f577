"""The dashboard's own connections to brokers, which may be down when the dashboard starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from matador.dashboard.sources import Sources, WatchedSource
from matador.errors import ConnectionFailedError, MatadorError

log = logging.getLogger("matador.dashboard")

_PATIENCE = 10.0  # seconds for one attempt
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0


class Link:
    """Connects the transports of sources that do not run in this process.

    A dashboard is needed most during outages. So it starts without the broker and retries until it
    is connected. From then on, the transport restores its connection itself.
    """

    def __init__(self, sources: Sources, when_connected: Callable[[], None]) -> None:
        self._sources = sources
        self._when_connected = when_connected
        self._trying: list[asyncio.Task[None]] = []
        self._linked: list[WatchedSource] = []
        self._opened: list[WatchedSource] = []

    async def open(self) -> None:
        """Connect, or keep retrying in the background if a broker cannot be reached.

        Raises:
            MatadorError: a retry would not help.
        """
        # Several sources may share a transport.
        self._linked = list(
            {
                id(one.transport): one
                for one in self._sources.all
                if one.transport.state.status == "disconnected"
            }.values()
        )
        outcomes = await asyncio.gather(*map(self._first, self._linked), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def close(self) -> None:
        """Disconnect."""
        for task in self._trying:
            task.cancel()
        await asyncio.gather(*self._trying, return_exceptions=True)
        for source in self._opened:
            if source.checkpoints is not None:
                await source.checkpoints.close()
        for source in self._sources.all:
            if source.jobs is not None:
                await source.jobs.shutdown()
        for source in self._linked:
            await source.transport.disconnect()

    async def _first(self, source: WatchedSource) -> None:
        try:
            await self._connect(source)
        except (ConnectionFailedError, TimeoutError) as error:
            said = str(error) or f"{source.transport.name} did not answer in {_PATIENCE:g} seconds"
            log.warning("%s; the dashboard keeps trying", said)
            again = self._try_again(source)
            self._trying.append(asyncio.create_task(again, name="matador-dashboard-link"))

    async def _connect(self, source: WatchedSource) -> None:
        if source.missing is not None:
            raise ConnectionFailedError(source.missing)  # the dashboard does not create storage
        async with asyncio.timeout(_PATIENCE):
            await source.transport.connect()
        for one in self._sources.all:
            if one.transport is source.transport and one.checkpoints is not None:
                await one.checkpoints.open()
                self._opened.append(one)

    async def _try_again(self, source: WatchedSource) -> None:
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                await self._connect(source)
                break
            except (ConnectionFailedError, TimeoutError):
                continue
            except MatadorError as error:  # the broker refuses: tell the operator
                log.error("the dashboard cannot connect, and tries again: %s", error)
        log.info("the dashboard is connected")
        self._when_connected()
