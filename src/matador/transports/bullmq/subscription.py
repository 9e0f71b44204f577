"""A subscription to a queue or to its dead letters, and how it takes jobs."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any, cast

from matador.errors import MatadorError, NotConnectedError, SendUnconfirmedError
from matador.model.job_limits import JobLimits, RateLimit
from matador.model.message import Delivery
from matador.transports.bullmq import plain
from matador.transports.bullmq.client import BullMQClient, BullMQSession
from matador.transports.bullmq.jobs import BullJob, JobHold
from matador.transports.bullmq.native_job import job_of
from matador.transports.bullmq.scripts import Call, together
from matador.transports.bullmq.topology import JobSet
from matador.transports.bullmq.upkeep import continue_schedulers
from matador.transports.bullmq.wire import id_text

_POLL = 0.2  # seconds; BullMQ wakes nobody for failed jobs
_SHORTEST = 0.001
_MOST_PLAIN = 100  # jobs at once: the server does nothing else meanwhile
_BY_BULLMQ = 20


class JobSource(ABC):
    """Where a subscription gets its deliveries from."""

    def __init__(self, jobs: JobSet, *, lease: float) -> None:
        self._jobs = jobs
        self._lock = round(lease * 1000)

    @abstractmethod
    async def take(self, session: BullMQSession, limit: int) -> tuple[list[Delivery], float]:
        """Up to ``limit`` deliveries; if there are none, how many seconds to wait."""

    async def wait(self, session: BullMQSession, seconds: float) -> bool:
        """Wait for something new; returns whether it used up a marker that others wait for."""
        await asyncio.sleep(seconds)
        return False

    def set_rate(self, rate: RateLimit | None) -> None:  # noqa: B027 - optional
        """Take so many jobs at most in so much time, together with all other workers."""

    @property
    def limited(self) -> bool:
        """A rate limit keeps it from taking jobs."""
        return False

    async def wake_another(self, session: BullMQSession) -> None:  # noqa: B027 - optional
        """Wake another worker, because this one takes nothing."""


class WaitingJobs(JobSource):
    """The next jobs of a queue. Takes many at once; BullMQ's marker says when there are some."""

    def __init__(self, jobs: JobSet, *, lease: float, block: float) -> None:
        super().__init__(jobs, lease=lease)
        self._block = block
        self._owner = token_hex(8)
        self._number = 0
        self._together = 1
        self._by_bullmq = 0  # how often BullMQ's own script is asked before ours is again
        self._rate: RateLimit | None = None
        self._limited = False

    def set_rate(self, rate: RateLimit | None) -> None:
        """See ``JobSource``. BullMQ's workers keep to it in the same way."""
        self._rate = rate

    @property
    def limited(self) -> bool:
        """See ``JobSource``."""
        return self._limited

    async def take(self, session: BullMQSession, limit: int) -> tuple[list[Delivery], float]:
        """See ``JobSource``. Plain jobs are taken by a script of ours, others by BullMQ's own."""
        self._limited = False
        if self._jobs.native and self._rate is None and not self._jobs.priorities:
            if not self._by_bullmq:
                found = await self._take_plain(session, limit)
                if found is not None:
                    return found
                self._by_bullmq = _BY_BULLMQ
            self._by_bullmq -= 1
        return await self._take(session, limit)

    async def _take_plain(
        self, session: BullMQSession, limit: int
    ) -> tuple[list[Delivery], float] | None:
        """``take`` of plain jobs; None: the next one takes BullMQ's own script."""
        most, now, first = min(limit, _MOST_PLAIN), session.now(), self._number + 1
        self._number += most
        call = plain.take(session, self._jobs.queue, most, self._owner, first, self._lock, now)
        (answer,) = await session.run([call])
        if isinstance(answer, MatadorError):  # BullMQ's own script has a guard
            return None
        taken = plain.taken(answer, self._owner, first)
        if not taken.jobs and taken.ask_bullmq:
            return None
        found: list[Delivery] = []
        scheduled: list[BullJob] = []
        for id_, token, fields in taken.jobs:
            job = job_of(self._jobs, id_, fields)
            found.append(job.delivery(self._jobs, token))
            if job.scheduler is not None:
                scheduled.append(job)
        found = await self._without_stuck(session, found, scheduled)
        return found, self._until(now, 0, taken.due)

    async def _take(self, session: BullMQSession, limit: int) -> tuple[list[Delivery], float]:
        count = min(limit, self._together)
        scripts, now = session.scripts(self._jobs.queue), session.now()
        tokens = [self._token() for _ in range(count)]
        calls = [scripts.next_job(token, now, self._lock, self._rate) for token in tokens]
        found: list[Delivery] = []
        scheduled: list[BullJob] = []
        failure: MatadorError | None = None
        wait = self._block
        for token, answer in zip(tokens, await self._run(session, calls), strict=False):
            if isinstance(answer, MatadorError):
                failure = answer
            elif answer[0]:
                job = job_of(self._jobs, id_text(answer[1]), answer[0])
                found.append(job.delivery(self._jobs, token))
                if job.scheduler is not None:
                    scheduled.append(job)
            else:
                self._limited = int(answer[2]) > 0
                wait = min(wait, self._until(now, int(answer[2]), float(answer[3])))
        if failure is not None and not found:
            raise failure
        # Asking in vain costs the server as much as a job: ask for a little more than came.
        self._together = count * 2 if len(found) == count else len(found) + 1
        return await self._without_stuck(session, found, scheduled), wait

    async def _without_stuck(
        self, session: BullMQSession, found: list[Delivery], scheduled: Sequence[BullJob]
    ) -> list[Delivery]:
        """Have schedulers add their next jobs; without the jobs of those that could not."""
        if not scheduled:
            return found
        stuck = await continue_schedulers(session, self._jobs.queue, scheduled)
        return [one for one in found if cast("JobHold", one.receipt.handle).id not in stuck]

    async def _run(self, session: BullMQSession, calls: Sequence[Call]) -> list[Any]:
        """The answers; those of a job queue end with the first one that finds nothing."""
        if not self._jobs.native or len(calls) == 1:
            return await session.run(calls)
        (answers,) = await session.run([together(calls, stops=True)])
        if isinstance(answers, MatadorError):
            raise answers
        return [session.plain(answer) for answer in answers]

    def _until(self, now: int, limited: int, due: float) -> float:
        """Seconds until the rate limit ends, or until the next delayed job is due."""
        waits = [limited / 1000] if limited > 0 else []
        waits += [(due - now) / 1000] if due > 0 else []
        return max(_SHORTEST, min([self._block, *waits]))

    def _token(self) -> str:
        self._number += 1
        return f"{self._owner}:{self._number}"

    async def wait(self, session: BullMQSession, seconds: float) -> bool:
        """See ``JobSource``. A marker does not end a rate limit: it is left to others."""
        if self._limited:
            return await super().wait(session, seconds)
        key = session.scripts(self._jobs.queue).key("marker")
        return await session.ask("BZPOPMIN", key, round(seconds, 3)) is not None

    async def wake_another(self, session: BullMQSession) -> None:
        """See ``JobSource``. Sets the marker, as BullMQ does for a job."""
        key = session.scripts(self._jobs.queue).key("marker")
        with contextlib.suppress(MatadorError):  # others poll now and then all the same
            await session.ask("ZADD", key, 0, "0")


class FailedJobs(JobSource):
    """Failed jobs of one kind, the oldest first."""

    async def take(self, session: BullMQSession, limit: int) -> tuple[list[Delivery], float]:
        """See ``JobSource``."""
        return list((await self.hold(session, limit, ())).values()), _POLL

    async def hold(
        self, session: BullMQSession, limit: int, ids: Sequence[str]
    ) -> dict[str, Delivery]:
        """Take these, or the oldest; their deliveries, by the ids of the jobs."""
        assert self._jobs.kind is not None
        token = token_hex(12)
        scripts = session.scripts(self._jobs.queue)
        call = scripts.take_failed(self._jobs.kind, token, self._lock, limit, ids)
        (rows,) = await session.run([call])
        if isinstance(rows, MatadorError):
            raise rows
        taken = [job_of(self._jobs, id_text(id_), flat) for id_, flat in rows]
        return {job.id: job.delivery(self._jobs, token) for job in taken}


class BullMQSubscription:
    """See ``matador.transports.base.Subscription``. Nothing is taken before it is asked for.

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
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: deque[Delivery] = deque()
        self._taking: asyncio.Task[float] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._receivers = 0

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return not self._ending.done()

    def set_limits(self, limits: JobLimits) -> None:
        """See ``JobLimiting``. BullMQ has no limit for each key: that is ignored."""
        self._source.set_rate(limits.rate)

    @property
    def limited(self) -> bool:
        """See ``JobLimiting``."""
        return self._source.limited

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Waits while the connection is lost."""
        self._receivers += 1
        try:
            while self.active:
                taking = self._taking or asyncio.create_task(self._take(limit))
                self._taking = taking
                try:
                    wait = await asyncio.shield(taking)
                except SendUnconfirmedError:  # the connection is lost: it is made again
                    continue
                except NotConnectedError:
                    if not self.active:
                        break
                    raise
                finally:
                    if taking.done():
                        self._taking = None
                if self._ready:
                    return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
                if self._waiting is None or self._waiting.done():
                    self._waiting = asyncio.create_task(self._wait(wait))
                await asyncio.wait(
                    [self._waiting, self._ending], return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            self._receivers -= 1
        return ()

    async def _take(self, limit: int) -> float:
        if self._ready:
            return 0.0
        session = await self._client.wait_connected()
        found, wait = await self._source.take(session, limit)
        self._ready.extend(found)
        return wait

    async def _wait(self, seconds: float) -> None:
        try:
            session = await self._client.wait_connected()
            woken = await self._source.wait(session, seconds)
        except (SendUnconfirmedError, NotConnectedError):
            return  # whoever takes next finds out
        if woken and not self._receivers:
            await self._source.wake_another(session)

    async def close(self) -> None:
        """See ``Subscription``."""
        if not self.active:
            return
        self._ending.set_result(None)
        self._closed(self)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
            if self._client.state.status == "connected":
                await self._source.wake_another(await self._client.connection())
        await self.pause()

    async def pause(self) -> None:
        """See ``Pausing``: what a cancelled ``receive`` takes goes back."""
        taking = self._taking
        if taking is not None:
            if self._client.state.status != "connected":
                taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                taking.exception()  # nobody is left to tell
            if self._taking is taking:
                self._taking = None
        if self._ready:
            left = list(self._ready)
            self._ready.clear()
            await self._give_back(left)
