"""Where a subscription gets its deliveries from: jobs that wait, or failed ones."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, NamedTuple, cast

from redis.exceptions import ResponseError

from matador.errors import MatadorError
from matador.model.job_limits import RateLimit
from matador.model.message import Delivery
from matador.transports.bullmq import plain
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.jobs import BullJob, JobHold, job_of
from matador.transports.bullmq.schedules import continue_schedulers
from matador.transports.bullmq.scripts import Call, together
from matador.transports.bullmq.topology import JobSet
from matador.transports.bullmq.wire import id_text
from matador.transports.redis_client.connection import PipelinedConnection, forget

POLL = 0.2  # seconds; BullMQ wakes no worker for failed jobs
_SHORTEST = 0.001
_MOST_PLAIN = 100  # jobs at once: the server does nothing else meanwhile
_BY_BULLMQ = 20
_ASK_AGAIN = 0.05  # seconds


class Found(NamedTuple):
    """What a source has found.

    ``wait``: if it has found nothing, how many seconds to wait for something. ``drained``: there
    was nothing else, and a marker will say when there is. ``marker``: it used up one that others
    wait for.
    """

    deliveries: list[Delivery]
    wait: float = 0.0
    drained: bool = False
    marker: bool = False


class JobSource(ABC):
    """Where a subscription gets its deliveries from."""

    def __init__(self, jobs: JobSet, *, lease: float) -> None:
        self._jobs = jobs
        self._lock = round(lease * 1000)

    @abstractmethod
    async def take(self, session: BullMQSession, limit: int) -> Found:
        """Up to ``limit`` deliveries."""

    async def wait(self, session: BullMQSession, seconds: float, limit: int) -> Found:
        """Wait for something new; may take up to ``limit`` deliveries as soon as there are some."""
        await asyncio.sleep(seconds)
        return Found([])

    async def stop_waiting(self, session: BullMQSession, waiting: asyncio.Task[None]) -> None:
        """End a task that runs ``wait``. Jobs that it takes all the same are not lost."""
        waiting.cancel()
        await asyncio.wait([waiting])

    def set_rate(self, rate: RateLimit | None) -> None:  # noqa: B027 - optional
        """Limit how many jobs all workers take together in a time."""

    @property
    def limited(self) -> bool:
        """Whether a rate limit keeps it from taking jobs."""
        return False

    async def wake_another(self, session: BullMQSession) -> None:  # noqa: B027 - optional
        """Wake another worker, because this one takes nothing."""

    def unblock(self) -> None:  # noqa: B027 - optional
        """End ``wait`` soon."""

    async def close(self) -> None:  # noqa: B027 - optional
        """Close the connection on which it waits."""


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
        self._blocking: tuple[BullMQSession, PipelinedConnection, int] | None = None
        self._seen_by: BullMQSession | None = None  # where its connection shows that it works

    def set_rate(self, rate: RateLimit | None) -> None:
        self._rate = rate

    @property
    def limited(self) -> bool:
        return self._limited

    @property
    def _plain(self) -> bool:
        """Whether our own script may take jobs."""
        jobs = self._jobs
        return jobs.native and self._rate is None and not jobs.priorities and not self._by_bullmq

    async def take(self, session: BullMQSession, limit: int) -> Found:
        """Take plain jobs by a script of ours, others by BullMQ's own."""
        self._limited = False
        if self._seen_by is not session:
            self._seen_by = session
            with contextlib.suppress(MatadorError):  # too many connections, say
                await self._connect(session)
        if self._plain:
            most = min(limit, _MOST_PLAIN)
            first, call = self._plain_call(session, most)
            (answer,) = await session.run([call])
            found = await self._found(session, answer, first, most)
            if found is not None:
                return found
        self._by_bullmq = max(0, self._by_bullmq - 1)
        return await self._take(session, limit)

    def _plain_call(self, session: BullMQSession, most: int) -> tuple[int, Call]:
        """The call that takes plain jobs, and the number of its first token."""
        first = self._number + 1
        self._number += most
        return first, plain.take(session, self._jobs.queue, most, self._owner, first, self._lock)

    async def _found(
        self, session: BullMQSession, answer: Any, first: int, most: int
    ) -> Found | None:
        """The plain jobs of an answer; None: the next one takes BullMQ's own script."""
        if isinstance(answer, Exception):  # BullMQ's own script has a guard
            taken = plain.NOTHING
        else:
            taken = plain.taken(answer, self._owner, first)
        if taken.ask_bullmq:
            self._by_bullmq = _BY_BULLMQ
        if not taken.jobs and taken.ask_bullmq:
            return None
        drained = not taken.ask_bullmq and len(taken.jobs) < most
        found = await self._deliveries(session, taken.jobs)
        return Found(found, self._until(session.now(), 0, taken.due), drained)

    async def _take(self, session: BullMQSession, limit: int) -> Found:
        count = min(limit, self._together)
        scripts, now = session.scripts(self._jobs.queue), session.now()
        tokens = [self._token() for _ in range(count)]
        calls = [scripts.next_job(token, now, self._lock, self._rate) for token in tokens]
        taken: list[tuple[str, str, Sequence[bytes]]] = []
        failure: MatadorError | None = None
        wait = self._block
        for token, answer in zip(tokens, await self._run(session, calls), strict=False):
            if isinstance(answer, MatadorError):
                failure = answer
            elif answer[0]:
                taken.append((id_text(answer[1]), token, answer[0]))
            else:
                self._limited = int(answer[2]) > 0
                wait = min(wait, self._until(now, int(answer[2]), float(answer[3])))
        if failure is not None and not taken:
            raise failure
        # A call that finds nothing costs the server as much as a job: ask for a little more than
        # the last time brought.
        self._together = count * 2 if len(taken) == count else len(taken) + 1
        return Found(await self._deliveries(session, taken), wait)

    async def _deliveries(
        self, session: BullMQSession, taken: Sequence[tuple[str, str, Sequence[bytes]]]
    ) -> list[Delivery]:
        """Make deliveries of jobs, given with their ids, tokens and fields.

        Adds the next jobs of their schedulers, and leaves out jobs whose next one was not added.
        """
        found: list[Delivery] = []
        scheduled: list[BullJob] = []
        for id_, token, fields in taken:
            job = job_of(self._jobs, id_, fields)
            found.append(job.delivery(self._jobs, token))
            if job.scheduler is not None:
                scheduled.append(job)
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

    async def wait(self, session: BullMQSession, seconds: float, limit: int) -> Found:
        """Wait for BullMQ's marker. During a rate limit it is left to other workers.

        The call that takes plain jobs is queued behind the marker, on a separate connection: it
        takes them as soon as they are added, without another round trip.
        """
        if self._limited:
            return await super().wait(session, seconds, limit)
        connection = await self._connect(session)
        marker = session.scripts(self._jobs.queue).key("marker")
        commands: list[tuple[Any, ...]] = [("BZPOPMIN", marker, f"{seconds:.3f}")]
        first = most = 0
        if self._plain:
            most = min(limit, _MOST_PLAIN)
            first, call = self._plain_call(session, most)
            commands.append(session.command_of(call))
        futures = connection.call_all(commands, patience=seconds)
        try:
            woken, *answers = [await self._reply(future) for future in futures]
        except BaseException as error:
            for future in futures:
                future.add_done_callback(forget)
            if not isinstance(error, Exception):
                raise
            raise session.translated(error) from error
        found = await self._found(session, answers[0], first, most) if answers else None
        if isinstance(woken, Exception):  # the key of the marker is something else
            await asyncio.sleep(POLL)
            return found or Found([])
        return (found or Found([]))._replace(marker=woken is not None)

    async def _connect(self, session: BullMQSession) -> PipelinedConnection:
        known = self._blocking
        if known is not None and known[0] is session and not known[1].lost.done():
            return known[1]
        await self.close()
        connection = await session.connect_blocking()
        try:
            name = session.scripts(self._jobs.queue).worker_name
            connection.call("CLIENT", "SETNAME", name).add_done_callback(
                forget
            )  # not every server allows it
            number = await connection.call("CLIENT", "ID")
        except Exception as error:
            raise session.translated(error) from error
        self._blocking = (session, connection, number)
        return connection

    async def _reply(self, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        except ResponseError as error:
            return error

    async def stop_waiting(self, session: BullMQSession, waiting: asyncio.Task[None]) -> None:
        """Unblock the connection: to close it could lose jobs that were just taken."""
        if self._limited:
            await super().stop_waiting(session, waiting)
        while not waiting.done():  # it may not be blocked yet, or ends without being unblocked
            self.unblock()
            await asyncio.wait([waiting], timeout=_ASK_AGAIN)

    def unblock(self) -> None:
        if self._blocking is not None:
            session, _, number = self._blocking
            session.tell("CLIENT", "UNBLOCK", number)

    async def close(self) -> None:
        blocking, self._blocking = self._blocking, None
        if blocking is not None:
            session, connection, _ = blocking
            await session.close_blocking(connection)

    async def wake_another(self, session: BullMQSession) -> None:
        """Set the marker, as BullMQ does for a job."""
        key = session.scripts(self._jobs.queue).key("marker")
        with contextlib.suppress(MatadorError):  # other workers poll from time to time
            await session.ask("ZADD", key, 0, "0")


class FailedJobs(JobSource):
    """Failed jobs of one kind, the oldest first."""

    async def take(self, session: BullMQSession, limit: int) -> Found:
        return Found(list((await self.hold(session, limit, ())).values()), POLL)

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
