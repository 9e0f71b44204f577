"""``Queue``: adds jobs and reports their state."""

from __future__ import annotations

import asyncio
import builtins
import logging
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from threading import Lock
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from matador.errors import (
    ConfigurationError,
    DuplicateJobError,
    InvalidJobError,
    JobError,
    JobNotFoundError,
    JobProviderError,
    JobsNotAddedError,
    JobsUnsupportedError,
    MatadorError,
    UniqueJobError,
)
from matador.jobs.dead_letters import FailedJobs, JobReader
from matador.jobs.events import QueuePaused, QueueResumed
from matador.jobs.flows import FlowStep, JobHandle, Step, SyncJobHandle
from matador.jobs.functions import Anything, DeclaredJob, DeclareJob, JobFunction
from matador.jobs.job import ActiveJob, Job, job_from
from matador.jobs.options import JobOptions, MakeId, OnUnsupported, check_defaults, check_id
from matador.jobs.provider import (
    JobProvider,
    ProviderLike,
    another_provider,
    calling,
    job_error,
    jobs_topology,
    unsupported,
)
from matador.jobs.schedules import (
    DECLARED,
    Recurrence,
    Schedule,
    keep_schedule,
    schedule_from,
    schedule_message,
)
from matador.jobs.service import JobService, ReceivingOptions, check_queue_name
from matador.jobs.wire import (
    JobMaker,
    StoredJob,
    canceled_text,
    check_name,
    sent_fact,
    stored_message,
)
from matador.model import job as names
from matador.model.job import JOB_STATUSES, PAUSED, JobCapabilities, JobSchedule, JobStatus, Missed
from matador.model.message import Message, Once
from matador.model.options import Seconds, suggestion
from matador.model.subscriber import Idempotency
from matador.model.text import lone_surrogate
from matador.model.topology import Topology
from matador.policy.dedup import Deduplication
from matador.policy.recurrence import first_time
from matador.policy.retry import RetryPolicy
from matador.runtime.blocking import AtLoopEnd, Blocking, blocking
from matador.runtime.context import Context
from matador.runtime.hooks import Hooks, Sending
from matador.runtime.outbox import NO_BUFFER, Outbox, Parcel
from matador.transports.base import Choosing, JobFlows, JobScheduling, Transport
from matador.transports.kit.jobs import record_of

log = logging.getLogger("matador.jobs")

_UNIQUE_TRIES = 10
_MOST = 2**31 - 1  # jobs at once

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LAST_SENDS = 1.0  # seconds for the broker at the end of an event loop


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The number of jobs in each state.

    ``unknown`` names the states whose number the provider does not report; it is 0 here.
    """

    waiting: int
    delayed: int
    active: int
    completed: int
    failed: int
    paused: bool
    unknown: frozenset[JobStatus] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHealth:
    """Raw figures of a queue, without a verdict.

    Attributes:
        active_workers: the number of consumers; None: the provider does not know. On Kafka, the
            workers of one process count as one.
        depth: jobs that wait, delayed ones included; None: the provider does not know all of them.
        error_rate: failed jobs of all finished ones, from 0 to 1; None: the provider does not know.
        completed: jobs that completed, as far as the provider remembers; None: it does not.
        failed: jobs that failed permanently, as far as the provider remembers; None: it does not.
        paused: whether no worker gets a job.
    """

    active_workers: int | None
    depth: int | None
    error_rate: float | None
    completed: int | None
    failed: int | None
    paused: bool


class Queue(JobService):
    """A queue of jobs. Connects on first use, in any event loop, or with ``async with queue``.

    Args:
        name: the name of the queue.
        provider: where jobs are kept: a URL, a transport, a ``JobProvider``, or a function that
            makes one from the name. None: in memory, shared by all queues of this event loop.
        job_id: makes the id of a job from its name and data. None: a UUID.
        default_options: options for all jobs; those of ``add`` win.
        on_unsupported: called for each option that the provider does not support.
        hooks: called for jobs that are added: ``matador.observe.Journal("journal/")``, or ``Hooks``
            of your own.
        retry, timeout, idempotent, deduplication: the defaults of workers made with this queue,
            ``Worker(queue)``. See ``Worker``.
        connect_timeout: seconds for which to retry the first connection.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> queue = Queue("emails")
        >>> job = await queue.add("welcome", {"to": "ada@example.com"}, attempts=5)
        >>> job.status
        'waiting'
    """

    def __init__(
        self,
        name: str,
        *,
        provider: ProviderLike | None = None,
        job_id: MakeId | None = None,
        default_options: JobOptions | None = None,
        on_unsupported: OnUnsupported | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        idempotent: Idempotency | None = None,
        deduplication: Deduplication | None = None,
        connect_timeout: Seconds = 0.0,
    ) -> None:
        check_queue_name(name, "Queue", "name")
        where = f"[Queue:{name}]"
        super().__init__(
            where,
            name,
            provider=provider,
            on_unsupported=on_unsupported,
            hooks=hooks,
            connect_timeout=connect_timeout,
        )
        if job_id is not None and not callable(job_id):
            raise ConfigurationError(f"{where} job_id must be a function, got {job_id!r}")
        self._make_id = job_id
        self._defaults: Mapping[str, Any] = dict(default_options or {})
        check_defaults(self._defaults, f"{where} default_options")
        self._full_name = name
        self._forget_loops()
        self._declared: dict[str, DeclaredJob[..., Any]] = {}
        self._functions: dict[str | None, JobFunction] = {}
        self.receiving = ReceivingOptions(retry, timeout, idempotent, deduplication, where=where)
        """The defaults of workers made with this queue."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    def __repr__(self) -> str:
        return f"Queue({self._name!r})"

    # -- life -------------------------------------------------------------------------------------

    async def open(self) -> JobProvider:
        """Connect, and create the queue if it does not exist. Also done on first use.

        Example:
            >>> provider = await queue.open()
            >>> provider.capabilities.delays
            True
        """
        await self._ready()
        return self.provider

    async def start(self) -> None:
        """``open``. A second call does nothing.

        Example:
            >>> await queue.start()
        """
        await super().start()
        if self._at_loop_end is None:
            self._at_loop_end = await AtLoopEnd.of(self._loop_ended)

    async def _loop_ended(self) -> None:
        """Close when the event loop ends without a shutdown."""
        await self.shutdown(_LAST_SENDS, disconnect=True)  # no other loop can use these objects

    async def shutdown(self, timeout: Seconds | None = None, *, disconnect: bool = False) -> None:
        """Finish sends in flight and release the provider. Idempotent.

        ``disconnect``: disconnect the provider even if the caller gave it and others may use it.

        Example:
            >>> await queue.shutdown(timeout=5)
        """
        await super().shutdown(timeout, disconnect=disconnect)
        ending, self._at_loop_end = self._at_loop_end, None
        if ending is not None:
            await ending.forget()

    async def _ready(self) -> Outbox:
        outbox = self._outbox
        if outbox is None:
            await self.start()
            outbox = self._may_send()
        return outbox

    @property
    def provider(self) -> JobProvider:
        """The provider of the jobs."""
        return self._provider

    def provider_here(self) -> JobProvider:
        """The provider for this event loop."""
        return self.here().provider

    def here(self) -> Queue:
        """The queue for this event loop: itself, or a copy if another loop uses it.

        Every awaited method runs on that queue. A copy has its own connection, which ends with the
        loop.
        """
        if self._is_in_own_loop:
            return self
        try:
            loop = get_running_loop()
        except RuntimeError:  # a tool inspects it before anything runs
            return self
        if self._loop is loop:
            return self
        with self._finding:
            self._copies = {one: q for one, q in self._copies.items() if not one.is_closed()}
            if loop in self._copies:
                return self._copies[loop]
            if self._owner is None or self._owner is loop or self._owner.is_closed():
                if self._loop is not None:  # closed without ending its tasks and generators
                    self._begin_anew()
                    self._provider = another_provider(
                        self._provider, self._given, self._name, self._where
                    )
                self._owner = loop
                return self
            made = self._copies[loop] = self.another()
            return made

    def another(self) -> Self:
        other = super().another()
        other._forget_loops()
        return other

    def _forget_loops(self) -> None:
        self._finding = Lock()
        self._owner: AbstractEventLoop | None = None
        self._copies: dict[AbstractEventLoop, Queue] = {}
        self._at_loop_end: AtLoopEnd | None = None

    def sync(self) -> SyncQueue:
        """The blocking form of the queue, for code without an event loop. See ``Blocking``.

        Example:
            >>> queue.sync().add("welcome", {"to": "ada@example.com"}).status
            'waiting'
        """
        return self._blocking(SyncQueue)

    async def _open(self, transport: Transport) -> None:
        provider = self.provider
        self._full_name = await calling(provider.store.open_jobs(self._name), self._name)
        self._maker = self._maker_for(provider, self._full_name)
        store = provider.store

        async def carry(exchange: str | None, jobs: Sequence[Message]) -> Sequence[Any]:
            return [1 if error is None else error for error in await store.add_jobs(jobs)]

        # In a group of transports, a job is a message, and the group reports which transport stored
        # it.
        grouped = isinstance(transport, Choosing)
        self._open_outbox(transport, recovery=NO_BUFFER, carry=None if grouped else carry)

    def _maker_for(self, provider: JobProvider, full_name: str) -> JobMaker:
        return JobMaker(
            queue=self._name,
            full_name=full_name,
            where=self._where,
            defaults=self._defaults,
            make_id=self._make_id,
            can=provider.capabilities,
            provider=provider.transport.name,
            report=self._report_unsupported,
            clock=self._clock,
        )

    @property
    def default_options(self) -> Mapping[str, Any]:
        """Options for all jobs."""
        return self._defaults

    @property
    def capabilities(self) -> JobCapabilities:
        """The features of the provider."""
        return self.provider.capabilities

    # -- adding -----------------------------------------------------------------------------------

    async def add(
        self,
        name: str,
        data: Any = None,
        *,
        job_id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Any]:
        """Add a job, and return it once it is safely stored.

        A job whose ``unique`` key is taken is not added: the job that holds the key is returned. If
        that job ends meanwhile, the new job is added.

        Args:
            name: selects the handler.
            data: what the handler needs: anything that can be written as JSON.
            job_id: an id of your own, unique in the queue.
            **options: see ``JobOptions``.

        Raises:
            InvalidJobError: an argument is wrong, or the data cannot be written as JSON.
            DuplicateJobError: there is a job with this id.
            UniqueJobError: the job that took the key for a while (``Unique(within=…)``) is gone.
            JobProviderError: it could not be stored, or the outcome is unknown.

        Example:
            >>> job = await queue.add("welcome", {"to": "ada@example.com"}, attempts=5, delay=60)
        """
        outbox = await self._ready()

        async def add(more: Mapping[str, Any]) -> Job[Any]:
            message, job = self._maker.make(name, data, job_id, self._with(more, options))
            outcome = await calling(outbox.post(self._parcel(message)), self._name, job.id)
            return await self._added(outbox, message, job, outcome)

        return await self._sending((name,), 1, add)

    async def _added(
        self, outbox: Outbox, message: Message, job: Job[Any], outcome: int | MatadorError
    ) -> Job[Any]:
        """The job, or the job that holds its unique key, after a first attempt to store it."""
        tries = 0
        while not isinstance(outcome, int):
            if not isinstance(outcome, UniqueJobError) or outcome.job_id is None:
                raise job_error(outcome, self._name, job.id)
            found = await self.get(outcome.job_id)
            if found is not None:
                return found
            # That job has ended meanwhile, and its key is free now, unless it is taken for a fixed
            # time.
            tries += 1
            if (tries > 1 and names.UNIQUE_FOR in message.headers) or tries > _UNIQUE_TRIES:
                raise job_error(outcome, self._name, job.id)
            await asyncio.sleep(0.001 * tries)
            outcome = await calling(outbox.post(self._parcel(message)), self._name, job.id)
        return job

    async def add_many(
        self, jobs: Sequence[tuple[str, Any]], **options: Unpack[JobOptions]
    ) -> builtins.list[Job[Any]]:
        """Add jobs, given as pairs of name and data, in as few round trips as possible.

        If a ``unique`` key is taken, the job that holds it is returned, as by ``add``.

        Raises:
            InvalidJobError: an argument is wrong; nothing was stored.
            JobsNotAddedError: some could not be stored. Its ``errors`` has the reasons.

        Example:
            >>> people = ["ada@example.com", "alan@example.com"]
            >>> jobs = await queue.add_many([("welcome", {"to": to}) for to in people], attempts=5)
        """
        pairs = [self._pair(one, number) for number, one in enumerate(jobs)]
        outbox = await self._ready()

        async def add(more: Mapping[str, Any]) -> builtins.list[Job[Any]]:
            given = self._with(more, options)
            made = [self._maker.make(name, data, None, given) for name, data in pairs]
            parcels = [self._parcel(message) for message, _ in made]
            outcomes = await calling(outbox.send_many(parcels), self._name)
            added: builtins.list[Job[Any]] = []
            errors: dict[int, Any] = {}
            for index, ((message, job), outcome) in enumerate(zip(made, outcomes, strict=True)):
                if isinstance(outcome, int):
                    added.append(job)
                    continue
                try:
                    added.append(await self._added(outbox, message, job, outcome))
                except MatadorError as error:
                    errors[index] = error
            if errors:
                first = next(iter(errors.values()))
                raise JobsNotAddedError(
                    f"{len(errors)} of {len(made)} jobs were not added; the first: {first}",
                    errors,
                    queue=self._name,
                )
            return added

        return await self._sending(tuple(dict.fromkeys(n for n, _ in pairs)), len(pairs), add)

    def _pair(self, given: object, number: int) -> tuple[Any, Any]:
        if isinstance(given, tuple | list) and len(cast("Sequence[Any]", given)) == 2:
            return tuple(cast("Sequence[Any]", given))
        raise InvalidJobError(
            f"{self._where} add_many: jobs[{number}] must be a pair of a name and data, "
            f"got {given!r:.100}"
        )

    def _id(self, job_id: object, call: str) -> str:
        """Check the id of a job, which another program may have added."""
        if isinstance(job_id, str) and lone_surrogate(job_id) is None:
            return job_id
        raise InvalidJobError(f"{self._where} {call}: job_id must be a string, got {job_id!r:.100}")

    async def _sending(
        self,
        names: tuple[str, ...],
        count: int,
        add: Callable[[Mapping[str, Any]], Awaitable[T]],
    ) -> T:
        """Add jobs, between the ``on_send_enter`` and ``on_send_exit`` hooks, with the metadata of
        hooks."""
        hooks, activity = self._hooks, self._activity
        activity.enqueuing += 1
        try:
            universal = {}
            if hooks.load_universal_metadata is not None:
                universal = await hooks.universal_metadata() or {}
            if hooks.send_around is None:
                return await add(universal)
            transport = self.provider.transport.name
            event = Sending("job", "send", names, self._name, count, transport, {})

            async def surrounded() -> T:
                return await add({**universal, **event.metadata})

            return await hooks.send_around.between(event, surrounded())
        except JobProviderError as error:
            self._provider_failed(error)
            raise
        finally:
            activity.finished_enqueuing()

    def _with(self, metadata: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options with the metadata of hooks; the user's values win."""
        if not metadata:
            return options
        given = {**self._defaults, **options}.get("metadata")
        if given is not None and not isinstance(given, Mapping):
            return options  # an invalid value, which ``JobMaker`` reports
        own = cast("Mapping[str, Any]", given or {})
        return {**options, "metadata": {**metadata, **own}}

    def _parcel(self, message: Message) -> Parcel:
        if self._hooks.sent is None:
            return Parcel(message, None, None)
        fact = sent_fact(message, self._name, self.provider.transport.name)
        return Parcel(message, None, fact)

    async def add_stored(
        self, jobs: Sequence[StoredJob], once: Once
    ) -> builtins.list[JobError | None]:
        """Add jobs of the lake again; for each, None or the error. Used by replays.

        A job that was added under this id before counts as stored: permanently if the transport
        records stored ids (``capabilities.once``), otherwise for as long as the provider knows the
        job.
        """
        outbox, now = await self._ready(), self._clock.time()
        parcels = [self._parcel(stored_message(self._full_name, one, now)) for one in jobs]
        outcomes = await calling(outbox.send_many(parcels, once), self._name)
        return [
            None
            if isinstance(outcome, int | DuplicateJobError)
            else job_error(outcome, self._name, job.id)
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]

    # -- declaring --------------------------------------------------------------------------------

    @property
    def declared(self) -> Mapping[str | None, JobFunction]:
        """The jobs declared with ``@queue.job``, by name."""
        return self._functions

    def read_result(self, name: str, result: Any) -> Any:
        """A stored result in the type that the declared job of that name returns."""
        job = self._declared.get(name)
        return result if job is None else job.read_result(result)

    @overload
    def job(
        self, function: Callable[Concatenate[Anything, ...], Awaitable[R]]
    ) -> DeclaredJob[..., R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Anything, ...], R]) -> DeclaredJob[..., R]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[ActiveJob[Any], P], Awaitable[R]]
    ) -> DeclaredJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[ActiveJob[Any], P], R]) -> DeclaredJob[P, R]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], Awaitable[R]]
    ) -> DeclaredJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R]) -> DeclaredJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, Awaitable[R]]) -> DeclaredJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, R]) -> DeclaredJob[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        idempotent: Idempotency | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        **options: Unpack[JobOptions],
    ) -> DeclareJob: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        idempotent: Idempotency | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        **options: Unpack[JobOptions],
    ) -> Any:
        """Declare a function as a job of this queue: ``@queue.job`` or ``@queue.job(attempts=5)``.

        Its parameters are the data of the job, and what it returns is the result. A parameter of
        the type ``ActiveJob`` or ``Context``, in any place, gets the job; callers of ``add`` do not
        pass it.

        With ``cron`` or ``every``, workers of the queue add the job by themselves. The schedule is
        stored, or changed, when a ``Worker(queue)`` starts, under the key ``@`` and the name of the
        job. A worker that starts without this declaration removes it.

        Args:
            name: the name of the job. None: that of the function, with dashes.
            timeout: the time limit of an attempt in seconds.
            idempotent: whether it may run again for the same job. None: the worker decides.
            cron, every, timezone: the recurrence. See ``schedule``.
            **options: see ``JobOptions``.

        Raises:
            ConfigurationError: two jobs of one name, a parameter that cannot be stored, or a
                recurring job that needs arguments.

        Example:
            >>> @queue.job(cron="0 7 * * *", timezone="Europe/Berlin")
            ... async def send_report() -> None: ...
        """
        recurrence = None
        if cron is not None or every is not None:
            recurrence = Recurrence(cron=cron, every=every, timezone=timezone)
            recurrence.checked(f"{self._where} job", self._clock.time())
        declare = DeclareJob(self, self._declare, name, timeout, idempotent, recurrence, options)
        return declare if function is None else declare(function)

    def _declare(self, job: DeclaredJob[..., Any], place: str) -> None:
        if job.name in self._declared:
            raise ConfigurationError(f"{self._where} there are two jobs named {job.name!r}{place}")
        self._declared[job.name] = job
        self._functions[job.name] = job.as_function

    # -- reading ----------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job[Any] | None:
        """The job with that id, or None.

        Raises:
            JobsUnsupportedError: the provider cannot find jobs by their ids.

        Example:
            >>> job = await queue.get(job_id)
            >>> job.status if job else "gone"
            'completed'
        """
        return (await self.get_many([job_id]))[0]

    async def get_many(self, ids: Sequence[str]) -> builtins.list[Job[Any] | None]:
        """For each id, in order: the job, or None. In one round trip.

        Raises:
            JobsUnsupportedError: the provider cannot find jobs by their ids.

        Example:
            >>> first, second = await queue.get_many([first_id, second_id])
        """
        wanted = [self._id(one, "get") for one in ids]
        store, queue = await self._store("find", "find a job by its id")
        records = await calling(store.find_jobs(queue, wanted), self._name)
        return [None if one is None else self._named_as_here(job_from(one)) for one in records]

    async def list(
        self, status: JobStatus = "waiting", limit: int = 100, *, skip: int = 0
    ) -> builtins.list[Job[Any]]:
        """Jobs in one state: finished ones with the latest first, others in the order in which they
        would run.

        Raises:
            JobsUnsupportedError: the provider cannot list them.

        Example:
            >>> [job.error for job in await queue.list("failed", limit=10)]
            ['no such address']
        """
        if status not in JOB_STATUSES:
            raise InvalidJobError(
                f"{self._where} list: status={status!r} is not one of {', '.join(JOB_STATUSES)}"
                f"{suggestion(str(status), JOB_STATUSES)}"
            )
        for name, number in (("limit", limit), ("skip", skip)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST:  # pyright: ignore[reportUnnecessaryIsInstance] - users
                raise InvalidJobError(
                    f"{self._where} list: {name} must be a whole number from 0 to {_MOST}, "
                    f"got {number!r}"
                )
        store, queue = await self._store(None, "")
        records = await calling(store.list_jobs(queue, status, limit=limit, skip=skip), self._name)
        return [self._named_as_here(job_from(record)) for record in records]

    async def stats(self) -> QueueStats:
        """The number of jobs in each state.

        Example:
            >>> (await queue.stats()).waiting
            3
        """
        store, queue = await self._store("counts", "count jobs")
        counts = await calling(store.count_jobs(queue), self._name)
        return QueueStats(**{one.name: getattr(counts, one.name) for one in fields(QueueStats)})

    async def health(self) -> QueueHealth:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raw figures about the queue, rather than its connection: workers, depth, error rate.

        Example:
            >>> (await queue.health()).error_rate  # None: the provider does not know
            0.01
        """
        store, queue = await self._store("counts", "count jobs")
        counts = await calling(store.count_jobs(queue), self._name)
        completed, failed = counts.all_completed, counts.all_failed
        if completed is None and "completed" not in counts.unknown:
            completed = counts.completed
        if failed is None and "failed" not in counts.unknown:
            failed = counts.failed
        unsure = counts.unknown & {"waiting", "delayed"}
        rate = None
        if completed is not None and failed is not None:
            rate = failed / (completed + failed) if completed + failed else 0.0
        return QueueHealth(
            active_workers=counts.workers,
            depth=None if unsure else counts.waiting + counts.delayed,
            error_rate=rate,
            completed=completed,
            failed=failed,
            paused=counts.paused,
        )

    @property
    def dead_letters(self) -> FailedJobs:
        """The failed jobs, like the dead letters of every other way in.

        ``list("failed")`` returns the same as jobs.

        Example:
            >>> async for letter in queue.dead_letters.browse():
            ...     print(letter.id, letter.error)
            >>> await queue.dead_letters.redrive(Selection(name="welcome"))
        """
        provider = self.provider_here()
        return FailedJobs(provider, self._name, self.reader, self._clock, self._ready, None)

    @property
    def topology(self) -> Topology:
        """Its queue, and that of its failed jobs."""
        return jobs_topology(self.provider, self._name)

    @property
    def reader(self) -> JobReader:
        """The reader of its stored jobs."""
        return JobReader(self._check_edited)

    def _check_edited(self, name: str, data: Any) -> None:
        job = self._declared.get(name)
        if job is not None:
            job.check_data(data, f"job {name!r}")

    # -- changing ---------------------------------------------------------------------------------

    async def retry(self, job_id: str) -> None:
        """Run a failed job again, with all its attempts.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it has not failed.

        Example:
            >>> for job in await queue.list("failed"):
            ...     await queue.retry(job.id)
        """
        store, queue = await self._store("retry", "retry a job by its id")
        await calling(store.retry_job(queue, self._id(job_id, "retry")), self._name, job_id)

    async def remove(self, job_id: str) -> None:
        """Remove a job that is not active.

        A job of a chain or a group that waits for it fails. On Redis, the jobs that it waits for
        are removed, too; with other providers, they run.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it is active.

        Example:
            >>> job = await queue.add("welcome", {"to": "ada@example.com"}, delay=3600)
            >>> await queue.remove(job.id)
        """
        store, queue = await self._store("remove", "remove a job by its id")
        await calling(store.remove_job(queue, self._id(job_id, "remove")), self._name, job_id)

    def handle(self, job_id: str) -> JobHandle[Any]:
        """A handle for a job that was added before, from its stored id. Connects to nothing.

        The result of a declared job comes in the type that its function returns.

        Example:
            >>> await queue.handle(job_id).status()
            'completed'
        """
        return JobHandle(self, check_id(job_id, f"{self._where} handle"))

    async def cancel(self, job_id: str, reason: str = "") -> bool:
        """Remove a job that waits or is delayed, and cancel one that runs, in any process.

        A running job fails at once with a ``JobCanceledError``, and is not retried. Its worker
        notices within about two seconds: an async function is canceled, a child process is killed,
        and in a thread ``job.lease_lost`` becomes true. Its result is ignored. Completed steps stay
        completed.

        Returns: False if the job was finished already.

        Raises:
            JobNotFoundError: there is no such job.
            JobsUnsupportedError: the provider does not support it; the error names providers that
                do.

        Example:
            >>> await queue.cancel(job_id, "the order was withdrawn")
            True
        """
        store, queue = await self._store("cancel", "cancel a job by its id")
        text = canceled_text(reason)
        id_ = self._id(job_id, "cancel")
        return await calling(store.cancel_job(queue, id_, text), self._name, job_id)

    def unsupported(self, ability: str, what: str) -> JobsUnsupportedError:
        """The error for an unsupported feature. It names the providers that support it."""
        provider = self.provider.transport.name
        return unsupported(self._where, provider, ability, what, self._name)

    async def pause(self) -> None:
        """Stop delivering jobs to any worker until ``resume``. Running jobs continue.

        Example:
            >>> await queue.pause()
        """
        store, queue = await self._store("pause", "pause a queue; worker.pause() pauses one worker")
        await calling(store.pause_jobs(queue), self._name)
        self._emit("paused", QueuePaused(queue=self._name))

    async def resume(self) -> None:
        """Let workers get jobs again.

        Example:
            >>> await queue.resume()
        """
        store, queue = await self._store("pause", "pause a queue; worker.pause() pauses one worker")
        await calling(store.resume_jobs(queue), self._name)
        self._emit("resumed", QueueResumed(queue=self._name))

    async def delete(self) -> None:
        """Delete all jobs, whatever their state. Jobs can be added again afterwards.

        Example:
            >>> await queue.delete()
        """
        store, queue = await self._store("delete", "delete a queue")
        await calling(store.delete_jobs(queue), self._name)

    # -- chains and groups ------------------------------------------------------------------------

    def step(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Step[Any]:
        """A job as a step of a ``chain`` or a ``group``. See ``DeclaredJob.using``.

        Example:
            >>> steps = [queue.step("resize", {"path": path}) for path in paths]
            >>> await group(*steps, then=queue.step("publish", {"images": RESULT})).add()
        """
        return Step(self, name, data, dict(options), lambda result: result)

    async def add_flow(self, steps: Sequence[FlowStep]) -> builtins.list[Job[Any]]:
        """Add the jobs of a flow, all or none. Use ``chain`` and ``group``."""
        store, queue = await self._store("flows", "run chains and groups")
        assert isinstance(store, JobFlows)

        async def add(more: Mapping[str, Any]) -> builtins.list[Job[Any]]:
            made = [self._flow_job(one, self._with(more, one.options)) for one in steps]
            messages = [message for message, _ in made]
            error = await calling(store.add_flow(queue, messages), self._name)
            if error is not None:
                raise job_error(error, self._name, made[0][1].id)
            await self._tell_sent(messages, self.provider.transport.name)
            return [job for _, job in made]

        return await self._sending(tuple(dict.fromkeys(one.name for one in steps)), len(steps), add)

    def _flow_job(self, step: FlowStep, options: Mapping[str, Any]) -> tuple[Message, Job[Any]]:
        if options.get("unique"):
            raise InvalidJobError(f"{self._where} step {step.name!r}: a flow has no unique jobs")
        message, job = self._maker.make(step.name, step.data, step.id, options)
        headers = {**message.headers, **step.headers}
        return msgspec.structs.replace(message, headers=headers), job

    # -- recurring jobs ---------------------------------------------------------------------------

    async def schedule(
        self,
        key: str,
        name: str,
        data: Any = None,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        missed: Missed = "one",
        **options: Unpack[JobOptions],
    ) -> Schedule:
        """Add a job repeatedly, by a cron expression or at an interval.

        A schedule with the same key is replaced. Its next time stays if ``cron``, ``every`` and
        ``timezone`` are the same, so that a program can call this on each start. Each occurrence
        adds one job, however many workers there are.

        Args:
            key: unique in the queue.
            name: the name of the jobs.
            data: their data. That of a declared job is checked; see ``DeclaredJob.schedule``.
            cron: five fields, like ``0 7 * * mon-fri``, six with seconds first, or ``@hourly``,
                ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
            every: seconds between two jobs. The first job is added at once.
            timezone: the time zone of the cron expression.
            missed: what to do about occurrences while no worker ran: ``one`` job for all of them,
                one for ``all`` of them each, or ``skip``.
            **options: see ``JobOptions``, but no delay.

        Raises:
            InvalidJobError: an argument is wrong.
            JobsUnsupportedError: the provider has no recurring jobs.

        Example:
            >>> await queue.schedule("report", "send-report", cron="0 7 * * mon-fri")
        """
        store, queue = await self._scheduling()
        where = f"{self._where} schedule {key!r}"
        check_id(key, where)
        if key.startswith(DECLARED):
            raise InvalidJobError(
                f"{where}: keys that begin with {DECLARED!r} belong to @queue.job(cron=…)"
            )
        now = self._clock.time()
        self._check_declared(key, name, data, where)
        given = Recurrence(cron=cron, every=every, timezone=timezone, missed=missed)
        try:
            recurrence = given.checked(where, now)
        except ConfigurationError as error:
            raise InvalidJobError(str(error)) from None
        if options.get("delay") or options.get("unique"):
            raise InvalidJobError(f"{where}: a schedule has neither delay nor unique")
        given = {**options, "delay": None, "unique": None}  # overrides the defaults of the queue
        message, _ = self._maker.make(name, data, key, given)
        keeping = keep_schedule(store, queue, key, message, recurrence, now)
        return schedule_from(await calling(keeping, self._name))

    def _check_declared(self, key: str, name: object, data: Any, where: str) -> None:
        """Check a schedule against the declared jobs of the queue, if there are any."""
        check_name(name, where, f"await {{job}}.schedule({key!r}, cron=…).add(…)")
        if not self._declared:
            return
        job = self._declared.get(cast("str", name))
        if job is None:
            known = [str(one) for one in self._declared]
            raise InvalidJobError(
                f"{where}: the queue declares no job named {name!r} (there are: "
                f"{', '.join(known)}){suggestion(str(name), known)}"
            )
        job.check_data(data, where)

    async def keep_declared(
        self, store: JobScheduling, full_name: str, provider: JobProvider
    ) -> None:
        """Store the schedules of ``@queue.job(cron=…)``, and remove those of earlier declarations.

        Called by a worker that starts, with its own connection.

        Raises:
            JobsUnsupportedError: the provider has no recurring jobs.
        """
        now, maker = self._clock.time(), self._maker_for(provider, full_name)
        recurring = {
            f"{DECLARED}{job.name}": job for job in self._declared.values() if job.recurrence
        }
        for key, job in recurring.items():
            assert job.recurrence is not None
            given = {**job.options, "delay": None, "unique": None}
            message, _ = maker.make(job.name, {}, key, given)
            recurrence = job.recurrence.checked(f"{self._where} job {job.name!r}", now)
            await calling(
                keep_schedule(store, full_name, key, message, recurrence, now), self._name
            )
        for stored in await calling(store.list_schedules(full_name), self._name):
            if stored.key.startswith(DECLARED) and stored.key not in recurring:
                await calling(store.remove_schedule(full_name, stored.key), self._name)
                log.info(
                    "%s job %r is not declared to recur any more: its schedule is removed",
                    self._where,
                    stored.name,
                )

    @property
    def recurs(self) -> bool:
        """Whether it declares recurring jobs."""
        return any(job.recurrence is not None for job in self._declared.values())

    async def schedules(self) -> builtins.list[Schedule]:
        """All recurring jobs, ordered by when they are due next.

        Example:
            >>> [(one.key, one.next_at) for one in await queue.schedules()]
        """
        store, queue = await self._scheduling()
        return [
            schedule_from(one) for one in await calling(store.list_schedules(queue), self._name)
        ]

    async def unschedule(self, key: str) -> bool:
        """End a recurring job; False if there is none with that key. Jobs that it added stay.

        Example:
            >>> await queue.unschedule("report")
            True
        """
        store, queue = await self._scheduling()
        return await calling(store.remove_schedule(queue, key), self._name)

    async def run_schedule(self, key: str) -> Job[Any]:
        """Add one job of a schedule now, besides those at its times, also while it is paused.

        Raises:
            JobNotFoundError: there is no schedule with that key.

        Example:
            >>> job = await queue.run_schedule("report")
        """
        store, queue = await self._scheduling()
        found, outbox = await self._scheduled(store, queue, key), await self._ready()
        job_id = f"repeat.{key}.{self._clock.new_id()}"
        message = schedule_message(queue, found, job_id, self._clock.time())
        outcome = await calling(outbox.post(self._parcel(message)), self._name, job_id)
        if not isinstance(outcome, int):
            raise job_error(outcome, self._name, job_id)
        record = record_of(job_id, queue, message.headers, message.body, "waiting")
        return self._named_as_here(job_from(record))

    async def pause_schedule(self, key: str, *, paused: bool = True) -> Schedule:
        """Pause a schedule until it is resumed with ``paused=False``.

        It stays paused if a program declares it again with the same times.

        Raises:
            JobNotFoundError: there is no schedule with that key.

        Example:
            >>> (await queue.pause_schedule("report")).paused
            True
        """
        store, queue = await self._scheduling()
        found = await self._scheduled(store, queue, key)
        if paused != found.is_paused:
            next_at = PAUSED if paused else first_time(found, self._clock.time())
            found = msgspec.structs.replace(found, next_at=next_at)
            await calling(store.put_schedule(queue, found), self._name)
        return schedule_from(found)

    async def _scheduled(self, store: JobScheduling, queue: str, key: str) -> JobSchedule:
        for one in await calling(store.list_schedules(queue), self._name):
            if one.key == key:
                return one
        raise JobNotFoundError(f"queue {self._name!r} has no schedule {key!r}", queue=self._name)

    async def _scheduling(self) -> tuple[JobScheduling, str]:
        store, queue = await self._store("schedules", "keep recurring jobs")
        assert isinstance(store, JobScheduling)
        return store, queue

    async def _store(self, ability: str | None, what: str) -> tuple[Any, str]:
        provider = await self.open()
        if ability is not None and not getattr(provider.capabilities, ability):
            raise self.unsupported(ability, what)
        return provider.store, self._full_name

    def _named_as_here(self, job: Job[Any]) -> Job[Any]:
        return job if job.queue == self._name else msgspec.structs.replace(job, queue=self._name)


# -- in other event loops, and without one --------------------------------------------------------

_AWAITED = [
    "open",
    "start",
    "shutdown",
    "add",
    "add_many",
    "add_stored",
    "get",
    "get_many",
    "list",
    "stats",
    "health",
    "retry",
    "remove",
    "pause",
    "resume",
    "delete",
    "add_flow",
    "schedule",
    "schedules",
    "unschedule",
    "cancel",
    "keep_declared",
    "run_schedule",
    "pause_schedule",
]


def _here(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, on the queue of the event loop in which it is called."""

    @wraps(method)
    async def call(self: Queue, *args: Any, **kwargs: Any) -> Any:
        return await method(self.here(), *args, **kwargs)

    return call


for _name in _AWAITED:
    setattr(Queue, _name, _here(getattr(Queue, _name)))


class SyncQueue(Blocking[Queue]):
    """``queue.sync()``: a queue for code without an event loop. See ``Blocking``.

    Example:
        >>> emails = Queue("emails", provider="redis://localhost").sync()
        >>> emails.add("welcome", {"to": "ada@example.com"}, delay=10)
    """

    _called = "queue"

    add = blocking(Queue.add)
    add_many = blocking(Queue.add_many)
    get = blocking(Queue.get)
    get_many = blocking(Queue.get_many)
    list = blocking(Queue.list)
    stats = blocking(Queue.stats)
    retry = blocking(Queue.retry)
    remove = blocking(Queue.remove)
    pause = blocking(Queue.pause)
    resume = blocking(Queue.resume)
    delete = blocking(Queue.delete)
    schedule = blocking(Queue.schedule)
    schedules = blocking(Queue.schedules)
    unschedule = blocking(Queue.unschedule)
    cancel = blocking(Queue.cancel)
    run_schedule = blocking(Queue.run_schedule)
    pause_schedule = blocking(Queue.pause_schedule)

    def handle(self, job_id: str) -> SyncJobHandle[Any]:
        """A handle for an added job, from its stored id. Does not connect.

        Example:
            >>> queue.sync().handle(job_id).result(timeout=5)
            'sent'
        """
        return SyncJobHandle(self._service, self._service.handle(job_id))

    def health(self) -> QueueHealth:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``Queue.health``, which blocks.

        Example:
            >>> queue.sync().health().depth
            3
        """
        self.refuse_in_loop("health")
        return self.wait(Queue.health)
