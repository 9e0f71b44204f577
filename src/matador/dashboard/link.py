"""The dashboard's own connection to the broker, which may be down when the dashboard starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from matador.errors import ConnectionFailedError, MatadorError
from matador.events.app import Matador

log = logging.getLogger("matador.dashboard")

_PATIENCE = 10.0  # seconds for one attempt
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0


class Link:
    """Connects the transport of an application that does not run in this process.

    A dashboard is needed most when something is down. So it starts without the broker, and tries
    again until it is there. From then on the transport looks after its connection itself.
    """

    def __init__(self, app: Matador, when_connected: Callable[[], None]) -> None:
        self._app = app
        self._when_connected = when_connected
        self._trying: asyncio.Task[None] | None = None
        self._opened = False

    async def open(self) -> None:
        """Connect, or go on trying in the background if the broker cannot be reached.

        Raises:
            MatadorError: trying again would not help.
        """
        try:
            await self._connect()
        except (ConnectionFailedError, TimeoutError) as error:
            log.warning("%s; the dashboard keeps trying", self._said(error))
            self._trying = asyncio.create_task(self._try_again(), name="matador-dashboard-link")

    async def close(self) -> None:
        """Disconnect."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        if self._opened:
            await self._app.checkpoints.close()
        await self._app.transport.disconnect()

    async def _connect(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            await self._app.transport.connect()
        await self._app.checkpoints.open()
        self._opened = True

    async def _try_again(self) -> None:
        pause = _FIRST_PAUSE
        while not self._opened:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                await self._connect()
            except (ConnectionFailedError, TimeoutError):
                continue
            except MatadorError as error:  # the broker is there, but refuses: somebody must look
                log.error("the dashboard cannot connect, and tries again: %s", error)
        log.info("the dashboard is connected")
        self._when_connected()

    def _said(self, error: BaseException) -> str:
        return str(error) or f"{self._app.transport.name} did not answer in {_PATIENCE:g} seconds"
