"""A subscription to a queue or to its dead letters, and the check for stalled jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import MatadorError, NotConnectedError, SendUnconfirmedError
from matador.model.job_limits import JobLimits
from matador.model.message import Delivery
from matador.transports.bullmq.client import BullMQClient
from matador.transports.bullmq.sources import POLL, Found, JobSource
from matador.transports.kit.wakeup import Wakeup

log = logging.getLogger("matador.transports.bullmq")


class BullMQSubscription:
    """Deliveries of one queue. Takes nothing before ``receive`` asks for it.

    When ``receive`` is cancelled, its work continues: jobs that it takes are returned by the next
    call, or go back with ``pause``, and a marker that it uses up is set again for others.
    """

    def __init__(
        self,
        client: BullMQClient,
        queue: str,
        source: JobSource,
        *,
        give_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        closed: Callable[[BullMQSubscription], None],
    ) -> None:
        self._client = client
        self._queue = queue
        self._source = source
        self._give_back = give_back
        self._closed = closed
        self._active = True
        self._ready: deque[Delivery] = deque()
        self._taking: asyncio.Task[float] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._empty_until: float | None = None
        self._receivers = 0

    @property
    def queue(self) -> str:
        return self._queue

    @property
    def active(self) -> bool:
        return self._active

    def set_limits(self, limits: JobLimits) -> None:
        """Set the rate limit. BullMQ has no limit for each key: that is ignored."""
        self._source.set_rate(limits.rate)

    @property
    def limited(self) -> bool:
        return self._source.limited

    async def receive(self, limit: int) -> Sequence[Delivery]:
        self._receivers += 1
        try:
            while self.active:
                wait = self._known_wait()
                if wait is None and not self._ready:
                    wait = await self._join_taking(limit)
                if self._ready:
                    return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
                if wait is None or not self.active:  # it was closed meanwhile
                    continue
                self._woken = asyncio.get_running_loop().create_future()
                if self._waiting is None or self._waiting.done():
                    self._waiting = asyncio.create_task(self._wait(wait, limit))
                await self._woken
        except asyncio.CancelledError:
            self._source.unblock()  # the next ``receive`` may be long in coming
            raise
        finally:
            self._receivers -= 1
        return ()

    def _known_wait(self) -> float | None:
        """Seconds to wait, if the queue was empty the last time, and a marker tells of new jobs."""
        if self._empty_until is None or self._taking is not None:
            return None
        return max(0.001, self._empty_until - asyncio.get_running_loop().time())

    async def _join_taking(self, limit: int) -> float | None:
        """Take jobs, or join a call that does. Seconds to wait if there are none; None: ask again.

        Raises:
            NotConnectedError: there is no connection, and there will be none.
        """
        taking = self._taking or asyncio.create_task(self._take(limit))
        self._taking = taking
        try:
            return await asyncio.shield(taking)
        except SendUnconfirmedError:  # the connection is lost: it is made again
            return None
        except NotConnectedError:
            if not self.active:
                return None
            raise
        finally:
            if taking.done():
                self._taking = None

    async def _take(self, limit: int) -> float:
        session = await self._client.wait_connected()
        found = await self._source.take(session, limit)
        self._note(found)
        return found.wait

    async def _wait(self, seconds: float, limit: int) -> None:
        try:
            await self._wait_for_jobs(seconds, limit)
        finally:
            self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait_for_jobs(self, seconds: float, limit: int) -> None:
        self._empty_until = None
        try:
            session = await self._client.wait_connected()
            found = await self._source.wait(session, seconds, limit)
        except (SendUnconfirmedError, NotConnectedError):
            return  # the next call that takes jobs gets the error
        except MatadorError:  # too many connections, for example: poll instead
            await asyncio.sleep(min(seconds, POLL))
            return
        self._note(found)
        if self._receivers:
            return
        if self._ready:  # the next ``receive`` may be long in coming
            await self._give_back_ready()
        if found.marker:
            await self._source.wake_another(session)

    def _note(self, found: Found) -> None:
        self._ready.extend(found.deliveries)
        now = asyncio.get_running_loop().time()
        self._empty_until = now + found.wait if found.drained else None

    async def close(self) -> None:
        if not self.active:
            return
        self._active = False
        self._wake()
        self._closed(self)
        waited = await self._stop_waiting()
        if waited and self._client.state.status == "connected":
            await self._source.wake_another(await self._client.connection())
        await self.pause()
        await self._source.close()

    async def pause(self) -> None:
        """Release the jobs that a canceled ``receive`` has taken."""
        await self._stop_waiting()
        taking = self._taking
        if taking is not None:
            if self._client.state.status != "connected":
                taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.exception()  # no caller is left to get it
            if self._taking is taking:
                self._taking = None
        await self._give_back_ready()

    async def _stop_waiting(self) -> bool:
        """End what waits for jobs; returns whether anything did."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            return False
        with contextlib.suppress(NotConnectedError):
            await self._source.stop_waiting(await self._client.connection(), waiting)
        waiting.cancel()
        await asyncio.wait([waiting])
        return True

    async def _give_back_ready(self) -> None:
        if self._ready:
            left = list(self._ready)
            self._ready.clear()
            await self._give_back(left)


class StalledCheck:
    """Has BullMQ deliver stalled jobs again: those of workers that died, or lost their leases.

    Checks twice per lease, from the first subscription until the transport disconnects.

    All workers of a queue share the work: the first one that checks is the only one until the next
    time.
    """

    def __init__(self, client: BullMQClient, queue: str, lease: float) -> None:
        self._client = client
        self._queue = queue
        self._period = lease / 2
        self._active = True
        self._wakeup = Wakeup()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._active:
            try:
                session = await self._client.connection()
                # A little shorter than our period, so that our own next check is not refused.
                interval = round(self._period * 900)
                call = session.scripts(self._queue).release_stalled(session.now(), interval)
                (answer,) = await session.run([call])
                if isinstance(answer, MatadorError):
                    raise answer
                if answer:
                    log.warning(
                        "%s: %d jobs of workers that died are delivered again",
                        self._queue,
                        len(answer),
                    )
            except NotConnectedError:
                pass  # the supervisor reconnects
            except MatadorError as error:
                log.warning("%s: cannot check for stalled jobs: %s", self._queue, error)
            await self._wakeup.wait(self._period)

    async def close(self) -> None:
        """Stop after the present check: redis-py can lose a cancellation."""
        self._active = False
        self._wakeup.wake()
        await self._task
