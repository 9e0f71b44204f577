"""The life of an application: started once, shut down once, step by step, and in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from matador.errors import ShuttingDownError
from matador.model.options import Seconds, seconds
from matador.runtime.activity import Activity

log = logging.getLogger("matador")

Status: TypeAlias = Literal[
    "new",
    "starting",
    "running",
    "stopping-receive",
    "receive-stopped",
    "waiting-handlers",
    "stopping-enqueue",
    "disconnecting",
    "stopped",
]

_SENDING: frozenset[Status] = frozenset(
    {"running", "stopping-receive", "receive-stopped", "waiting-handlers"}
)

_LEAST_PATIENCE = 1.0
"""Seconds for the broker to answer, however little time there is for callbacks."""


@dataclass(frozen=True, slots=True, init=False)
class Shutdown:
    """How a shutdown goes: seconds for a graceful one, and seconds for giving back after that.

    Example:
        >>> Shutdown(timeout=60).grace
        5.0
    """

    timeout: float
    grace: float

    def __init__(self, timeout: Seconds = 30.0, *, grace: Seconds = 5.0) -> None:
        object.__setattr__(self, "timeout", seconds(timeout, "shutdown: timeout"))
        object.__setattr__(self, "grace", seconds(grace, "shutdown: grace"))

    @classmethod
    def of(cls, given: Shutdown | Seconds | None) -> Shutdown:
        """The options themselves, or a timeout alone."""
        if given is None:
            return cls()
        return given if isinstance(given, Shutdown) else cls(given)


class Stoppable(Protocol):
    """What a shutdown needs of an application, in the order it is called."""

    async def stop_receiving(self) -> None:
        """Receive no more."""
        ...

    def finish_receiving(self) -> Coroutine[Any, Any, None]:
        """Wait for running callbacks."""
        ...

    async def interrupt_receiving(self, grace: float) -> list[str]:
        """Cut them short; what was abandoned."""
        ...

    async def close(self) -> None:
        """Disconnect and release."""
        ...


class Lifecycle:
    """Where an application stands, and how it gets further."""

    def __init__(self, activity: Activity, options: Shutdown) -> None:
        self._activity = activity
        self.options = options
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.status: Status = "new"

    @property
    def may_send(self) -> bool:
        """May events be sent now? While it starts too: what waited is handled from then on."""
        return self.status in _SENDING or self.status == "starting"

    async def start(self, start: Callable[[], Awaitable[None]]) -> None:
        """Start once; concurrent calls wait for the same start."""
        if self.status in _SENDING:
            return
        if self.status not in ("new", "stopped", "starting"):
            raise ShuttingDownError("the application is shutting down; start it again afterwards")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(start))
        await asyncio.shield(self._starting)

    async def _start(self, start: Callable[[], Awaitable[None]]) -> None:
        before = self.status
        self.status = "starting"
        self._hurry = asyncio.Event()  # of this loop, which may not be that of the last start
        self._stopping = None
        try:
            await start()
        except BaseException:
            self.status = before
            raise
        else:
            self.status = "running"
        finally:
            self._starting = None

    async def resume(self, start: Callable[[], Awaitable[None]]) -> bool:
        """Run again where only receiving was stopped; False if that is not so."""
        if self.status != "receive-stopped":
            return False
        self._starting = asyncio.create_task(self._start(start))
        await asyncio.shield(self._starting)
        return True

    def begin_stop_receiving(self) -> bool:
        """May receiving be stopped now? Then it is being stopped from here on."""
        if self.status != "running":
            return False
        self.status = "stopping-receive"
        return True

    def receiving_stopped(self) -> None:
        """Nothing is received any more."""
        if self.status == "stopping-receive":  # else a shutdown has overtaken it
            self.status = "receive-stopped"

    def hurry(self) -> None:
        """Have a shutdown wait no longer."""
        self._hurry.set()

    async def shutdown(self, ending: Callable[[], Stoppable], timeout: Seconds | None) -> None:
        """Shut down once; concurrent and later calls wait for the same shutdown."""
        if self.status in ("new", "stopped") and self._starting is None:
            return
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
            if self.status not in _SENDING:
                return
        if self._stopping is None:
            limit = self.options.timeout if timeout is None else seconds(timeout, "timeout")
            self._stopping = asyncio.create_task(self._shut_down(ending(), limit))
        await asyncio.shield(self._stopping)

    async def _shut_down(self, app: Stoppable, limit: float) -> None:
        until = asyncio.get_running_loop().time() + limit
        grace = self.options.grace
        patience = max(limit, grace, _LEAST_PATIENCE)
        try:
            self.status = "stopping-receive"
            await in_time(app.stop_receiving(), patience, "stop receiving")
            self.status = "waiting-handlers"
            abandoned: list[str] = []
            if not await self._in_peace(app.finish_receiving(), until):
                if self._activity.processing:
                    log.warning(
                        "shutdown: %d messages are still being processed; cutting them short",
                        self._activity.processing,
                    )
                abandoned = await app.interrupt_receiving(grace)
            self.status = "stopping-enqueue"
            await self._in_peace(self._activity.wait_idle(None), until)
            if self._activity.enqueuing:
                abandoned.append(f"{self._activity.enqueuing} sends without an outcome")
            if abandoned:
                log.warning("shutdown was forced; abandoned: %s", ", ".join(abandoned))
            self.status = "disconnecting"
        finally:
            try:
                await in_time(app.close(), patience, "disconnect")
            finally:
                self.status = "stopped"

    async def _in_peace(self, step: Coroutine[Any, Any, object], until: float) -> bool:
        """Wait for a step for as long as there is time and nobody hurries. Was it done?"""
        left = max(0.0, until - asyncio.get_running_loop().time())
        doing = asyncio.create_task(step)
        hurried = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({doing, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                return False
            doing.result()
            return True
        finally:
            for task in (doing, hurried):
                task.cancel()
            await asyncio.gather(doing, hurried, return_exceptions=True)


async def in_time(step: Awaitable[object], limit: float, what: str) -> None:
    """Wait for a step of the shutdown, but not for ever: a broker that hangs must not hold us."""
    try:
        async with asyncio.timeout(limit):
            await step
    except TimeoutError:
        log.error("shutdown: could not %s within %g s; going on without", what, limit)
