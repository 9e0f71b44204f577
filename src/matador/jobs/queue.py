"""``Queue``: adds jobs, and says what has become of them."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, get_args, overload

import msgspec

from matador.errors import (
    ConfigurationError,
    DuplicateJobError,
    InvalidJobError,
    JobError,
    JobsNotAddedError,
    JobsUnsupportedError,
    MatadorError,
    SendUnconfirmedError,
    ShuttingDownError,
    UniqueJobError,
)
from matador.jobs.adding import JobMaker
from matador.jobs.declared import DeclaredJob, DeclareJob
from matador.jobs.events import Observable, QueuePaused, QueueResumed
from matador.jobs.flows import INTO, Step
from matador.jobs.functions import JobFunction
from matador.jobs.handle import FlowStep
from matador.jobs.job import Job, job_from
from matador.jobs.options import JobOptions, MakeId, check_id
from matador.jobs.provider import JobProvider, ProviderLike, calling, job_error, provider_for
from matador.jobs.recording import JobRecording
from matador.jobs.schedules import Schedule, schedule_from
from matador.jobs.stored import StoredJob, stored_message
from matador.jobs.unsupported import OnUnsupported, UnsupportedOptions
from matador.model import job as names
from matador.model.job import JOB_STATUSES, JobCapabilities, JobSchedule, JobStatus, Missed
from matador.model.message import Message, Once
from matador.model.options import Seconds, optional_seconds, seconds, suggestion
from matador.policy.recurrence import check_recurrence, first_time
from matador.runtime.deadline import Deadline
from matador.runtime.recorder import Recorder, check_recorder
from matador.transports.base import Deduplicating, JobFlows, JobScheduling, Transport
from matador.transports.coalescer import Coalescer

log = logging.getLogger("matador.jobs")

P = ParamSpec("P")
R = TypeVar("R")

_MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How many jobs of a queue are in which state.

    ``unknown`` names the states whose number the provider does not tell: it is 0 here.
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
    """Raw figures of a queue; whether they are good, the reader decides.

    Attributes:
        active_workers: how many consume it now; None: the provider does not know.
        depth: jobs that wait, delayed ones included.
        error_rate: failed jobs of all finished ones, from 0 to 1.
        completed: jobs that completed, as far as the provider remembers.
        failed: jobs that failed for good, as far as the provider remembers.
        paused: no worker gets a job.
    """

    active_workers: int | None
    depth: int
    error_rate: float
    completed: int
    failed: int
    paused: bool


class Queue(Observable):
    """A queue of jobs. Connects on first use, or with ``async with queue``.

    Args:
        name: the name of the queue.
        provider: where jobs are kept: a URL, a transport, a ``JobProvider``, or a function that
            makes one from the name. None: in memory, shared by all queues of this event loop.
        job_id: makes the id of a job from its name and data. None: a UUID.
        default_options: options for all jobs; those of ``add`` win.
        on_unsupported: called for each option that the provider cannot honour.
        journal: records the jobs that are added, for the data pipeline:
            ``matador.observe.Journal("journal/")``. None: nothing is recorded.

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
        journal: Recorder | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"[Queue] name must be a non-empty string, got {name!r}")
        self._name = name
        self._where = f"[Queue:{name}]"
        super().__init__(self._where, name)
        if job_id is not None and not callable(job_id):
            raise ConfigurationError(f"{self._where} job_id must be a function, got {job_id!r}")
        self._unsupported = UnsupportedOptions(name, self._where, on_unsupported)
        self._maker = JobMaker(name, self._where, default_options or {}, job_id, self._unsupported)
        check_recorder(journal, self._where)
        self._journal = journal
        self._recording = None if journal is None else JobRecording(journal, name)
        self._given = provider
        self._provider: JobProvider | None = None
        self._full_name: str | None = None
        self._declared: dict[str | None, JobFunction] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._adds: Coalescer[Message, MatadorError | None] | None = None

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    def __repr__(self) -> str:
        return f"Queue({self._name!r})"

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> JobProvider:
        """Connect, and make the queue if it is not there. Done on first use as well."""
        if self._loop is not (here := asyncio.get_running_loop()):  # the rest is of an earlier one
            self._loop, self._opening = here, asyncio.Lock()
            self._provider, self._full_name = None, None
        elif self._full_name is not None:
            return self.provider
        async with self._opening:
            if self._provider is None or self._full_name is None:
                provider = self.provider
                self._full_name = await provider.open(self._name, self)
                self._maker.bind(self._full_name, provider.capabilities, provider.transport.name)
                add = provider.store.add_jobs
                if self._recording is not None:
                    self._recording.start(provider.transport.name)
                    add = self._recording.adding(add)
                self._adds = Coalescer(add, max_batch=_MOST_AT_ONCE)
                self._provider = provider
            return self._provider

    @property
    def provider(self) -> JobProvider:
        """Where the jobs are kept. In memory, it needs a running event loop."""
        if self._provider is None:
            self._provider = provider_for(self._given, self._name, self._where)
        return self._provider

    async def close(self, timeout: Seconds = 30.0, *, disconnect: bool = False) -> None:
        """Wait for what is being added, then let go of the provider.

        Args:
            timeout: seconds to wait. What is not confirmed by then fails: it may have been added.
            disconnect: disconnect the provider even if it was given, and others may use it.
        """
        deadline = Deadline(seconds(timeout, f"{self._where} close: timeout"), self._where)
        async with self._opening:
            adds = self._adds
            if adds is not None and not await deadline.do(adds.drain(), "add every job"):
                given_up = adds.give_up(
                    ShuttingDownError("the queue was closed before the job was added"),
                    SendUnconfirmedError("the queue was closed before the job was confirmed"),
                )
                log.warning("%s %d jobs may not have been added", self._where, len(given_up))
            if self._recording is not None:
                await self._recording.stop()
            if self._provider is not None:
                await self._provider.close(self, disconnect=disconnect, deadline=deadline)
            self._full_name = self._adds = self._provider = None

    @property
    def on_unsupported(self) -> OnUnsupported | None:
        """What is called for each option that the provider cannot honour."""
        return self._unsupported.callback

    @property
    def journal(self) -> Recorder | None:
        """What records the jobs that are added."""
        return self._journal

    @property
    def default_options(self) -> Mapping[str, Any]:
        """Options for all jobs."""
        return self._maker.defaults

    @property
    def capabilities(self) -> JobCapabilities:
        """What the provider can do."""
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

        A job whose ``unique`` key is taken is not added: the one that has the key is returned.

        Args:
            name: which handler is to run it.
            data: what the handler needs: anything that can be written as JSON.
            job_id: an id of your own, unique in the queue.
            **options: see ``JobOptions``.

        Raises:
            InvalidJobError: an argument is wrong, or the data cannot be written as JSON.
            DuplicateJobError: there is a job with this id.
            JobProviderError: it could not be stored, or nobody knows whether it was.
        """
        await self.open()
        assert self._adds is not None
        with self._traced(name, options) as more:
            message, job = self._maker.make(name, data, job_id, more)
            error = await calling(self._adds.submit(message), self._name, job.id)
        if error is None:
            return job
        if isinstance(error, UniqueJobError) and error.job_id is not None:
            found = await self.get(error.job_id)
            if found is not None:
                return found
        raise _named(error, self._name, job.id)

    async def add_many(
        self, jobs: Sequence[tuple[str, Any]], **options: Unpack[JobOptions]
    ) -> builtins.list[Job[Any]]:
        """Add jobs, given as pairs of name and data, in as few round trips as possible.

        Raises:
            InvalidJobError: an argument is wrong; nothing was stored.
            JobsNotAddedError: some could not be stored. Its ``errors`` say which, and why.
        """
        await self.open()
        assert self._adds is not None
        names = ", ".join(dict.fromkeys(name for name, _ in jobs[:10]))
        with self._traced(names, options) as more:
            made = [self._maker.make(name, data, None, more) for name, data in jobs]
            futures = self._adds.submit_many([message for message, _ in made])
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        errors: dict[int, JobError] = {}
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, MatadorError):
                errors[index] = _named(outcome, self._name, made[index][1].id)
            elif isinstance(outcome, BaseException):
                raise outcome
        if errors:
            first = next(iter(errors.values()))
            raise JobsNotAddedError(
                f"{len(errors)} of {len(made)} jobs were not added; the first: {first}",
                errors,
                queue=self._name,
            )
        return [job for _, job in made]

    @contextlib.contextmanager
    def _traced(self, name: str, options: Mapping[str, Any]) -> Generator[Mapping[str, Any]]:
        """Surround an add with a span, if anybody makes some. Gives the options of the job."""
        recording = self._recording
        if recording is None or not recording.traces:
            yield options
            return
        given = {**self._maker.defaults, **options}.get("metadata")
        known = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else None
        if given is not None and known is None:
            yield options  # an error, which the maker of jobs reports
            return
        with recording.traces.send(
            "send", name, self._name, recording.transport, known
        ) as metadata:
            yield {**options, "metadata": metadata}

    async def add_stored(
        self, jobs: Sequence[StoredJob], once: Once
    ) -> builtins.list[JobError | None]:
        """Add jobs of the lake again; for each None, or why it was not stored. Used by replays.

        One that was added under this id before counts as stored: for good where the transport
        knows what it has stored (``capabilities.once``), elsewhere as long as the provider knows
        the job.
        """
        provider = await self.open()
        assert self._full_name is not None
        now, transport = time.time(), provider.transport
        messages = [stored_message(self._full_name, one, now) for one in jobs]
        add = provider.store.add_jobs
        if transport.capabilities.once and isinstance(transport, Deduplicating):
            add = functools.partial(transport.send_once, once=once)
        if self._recording is not None:
            add = self._recording.adding(add)
        outcomes = await calling(add(messages), self._name)
        return [
            None
            if error is None or isinstance(error, DuplicateJobError)
            else _named(error, self._name, job.id)
            for job, error in zip(jobs, outcomes, strict=True)
        ]

    def elsewhere(self) -> Queue:
        """The same queue, with nothing open: for another event loop.

        Raises:
            ConfigurationError: its provider is one object, which is connected here.
        """
        given = self._given
        transport = given.transport if isinstance(given, JobProvider) else given
        if isinstance(transport, Transport) and transport.state.status != "disconnected":
            raise ConfigurationError(
                f"{self._where} its provider is in use: close the queue first, or make it with a "
                f"URL as its provider"
            )
        return Queue(
            self._name,
            provider=given,
            default_options=self._maker.defaults,  # pyright: ignore[reportArgumentType] - checked
            journal=self._journal,
        )

    # -- declaring --------------------------------------------------------------------------------

    @property
    def declared(self) -> Mapping[str | None, JobFunction]:
        """What ``@queue.job`` has declared, by name."""
        return self._declared

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
        **options: Unpack[JobOptions],
    ) -> DeclareJob: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        timeout: Seconds | None = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Declare a function as a job of this queue: ``@queue.job`` or ``@queue.job(attempts=5)``.

        Its parameters are the data of the job, and what it returns is the result.

        Args:
            name: the name of the job. None: that of the function, with dashes.
            timeout: seconds that an attempt may take.
            **options: see ``JobOptions``.

        Raises:
            ConfigurationError: two jobs of one name, or a parameter that cannot be stored.
        """
        declare = DeclareJob(self, self._declared, name, timeout, options)
        return declare if function is None else declare(function)

    # -- looking ----------------------------------------------------------------------------------

    async def get(self, job_id: str) -> Job[Any] | None:
        """The job with that id, or None.

        Raises:
            JobsUnsupportedError: the provider cannot find jobs by their ids.
        """
        return (await self.get_many([job_id]))[0]

    async def get_many(self, ids: Sequence[str]) -> builtins.list[Job[Any] | None]:
        """For each id, in order: the job, or None. In one round trip.

        Raises:
            JobsUnsupportedError: the provider cannot find jobs by their ids.
        """
        store, queue = await self._store("find", "find a job by its id")
        records = await calling(store.find_jobs(queue, ids), self._name)
        return [None if one is None else self._named_as_here(job_from(one)) for one in records]

    async def list(
        self, status: JobStatus = "waiting", limit: int = 100, *, skip: int = 0
    ) -> builtins.list[Job[Any]]:
        """Jobs in one state: finished ones the latest first, others as they would run.

        Raises:
            JobsUnsupportedError: the provider cannot list them.
        """
        if status not in JOB_STATUSES:
            raise InvalidJobError(
                f"{self._where} list: status={status!r} is not one of {', '.join(JOB_STATUSES)}"
                f"{suggestion(str(status), JOB_STATUSES)}"
            )
        store, queue = await self._store(None, "")
        records = await calling(store.list_jobs(queue, status, limit=limit, skip=skip), self._name)
        return [self._named_as_here(job_from(record)) for record in records]

    async def dead_letters(self, limit: int = 100) -> builtins.list[Job[Any]]:
        """The jobs that failed for good, the latest first."""
        return await self.list("failed", limit)

    async def stats(self) -> QueueStats:
        """How many jobs are in which state."""
        store, queue = await self._store("counts", "count jobs")
        counts = await calling(store.count_jobs(queue), self._name)
        return QueueStats(
            waiting=counts.waiting,
            delayed=counts.delayed,
            active=counts.active,
            completed=counts.completed,
            failed=counts.failed,
            paused=counts.paused,
            unknown=counts.unknown,
        )

    async def health(self) -> QueueHealth:
        """Raw figures: workers, depth, error rate."""
        store, queue = await self._store("counts", "count jobs")
        counts = await calling(store.count_jobs(queue), self._name)
        completed = counts.completed if counts.all_completed is None else counts.all_completed
        failed = counts.failed if counts.all_failed is None else counts.all_failed
        return QueueHealth(
            active_workers=counts.workers,
            depth=counts.waiting + counts.delayed,
            error_rate=failed / (completed + failed) if completed + failed else 0.0,
            completed=completed,
            failed=failed,
            paused=counts.paused,
        )

    # -- changing ---------------------------------------------------------------------------------

    async def retry(self, job_id: str) -> None:
        """Have a failed job run again, with all its attempts.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it has not failed.
        """
        store, queue = await self._store("retry", "retry a job by its id")
        await calling(store.retry_job(queue, job_id), self._name, job_id)

    async def remove(self, job_id: str) -> None:
        """Remove a job that nobody is running.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: it is active.
        """
        store, queue = await self._store("remove", "remove a job by its id")
        await calling(store.remove_job(queue, job_id), self._name, job_id)

    async def pause(self) -> None:
        """Have no worker get a job until ``resume``. Jobs that run go on."""
        store, queue = await self._store("pause", "pause a queue; worker.pause() pauses one worker")
        await calling(store.pause_jobs(queue), self._name)
        self._emitter.emit("paused", QueuePaused(queue=self._name))

    async def resume(self) -> None:
        """Let workers get jobs again."""
        store, queue = await self._store("pause", "pause a queue; worker.pause() pauses one worker")
        await calling(store.resume_jobs(queue), self._name)
        self._emitter.emit("resumed", QueueResumed(queue=self._name))

    async def delete(self) -> None:
        """Delete all jobs, whatever their state. Jobs can be added again afterwards."""
        store, queue = await self._store("delete", "delete a queue")
        await calling(store.delete_jobs(queue), self._name)

    # -- chains and groups ------------------------------------------------------------------------

    def step(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Step[Any]:
        """A job as a step of a ``chain`` or a ``group``. See ``DeclaredJob.using``."""
        return Step(self, name, data, dict(options), lambda result: result)

    async def add_flow(self, steps: Sequence[FlowStep]) -> builtins.list[Job[Any]]:
        """Add the jobs of a flow, all or none. Use ``chain`` and ``group``."""
        store, queue = await self._store("flows", "run chains and groups")
        assert isinstance(store, JobFlows)
        made = [self._flow_job(one) for one in steps]
        error = await calling(store.add_flow(queue, [message for message, _ in made]), self._name)
        if error is not None:
            raise _named(error, self._name, made[0][1].id)
        if self._recording is not None:
            self._recording.added(message for message, _ in made)
        return [job for _, job in made]

    def _flow_job(self, step: FlowStep) -> tuple[Message, Job[Any]]:
        if step.options.get("unique"):
            raise InvalidJobError(f"{self._where} step {step.name!r}: a flow has no unique jobs")
        message, job = self._maker.make(step.name, step.data, step.id, step.options)
        headers: dict[str, str | int] = dict(message.headers)
        if step.parent is not None:
            headers[names.PARENT] = step.parent
        if step.children:
            headers[names.CHILDREN] = step.children
        if step.into is not None:
            headers[INTO] = step.into
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
        """Add a job again and again, by a cron expression or at an interval.

        A schedule with the same key is replaced. Its next time stays if ``cron``, ``every`` and
        ``timezone`` are the same, so that a program can do this each time it starts. However many
        workers there are, each time brings one job.

        Args:
            key: unique in the queue.
            name: the name of the jobs.
            data: their data.
            cron: five fields, like ``0 7 * * mon-fri``; six with seconds first.
            every: seconds between two jobs. The first one comes at once.
            timezone: in which the cron expression is meant.
            missed: what becomes of times at which no worker ran: ``one`` job for all of them, one
                for ``all`` of them each, or ``skip``.
            **options: see ``JobOptions``, but no delay.

        Raises:
            InvalidJobError: an argument is wrong.
            JobsUnsupportedError: the provider has no recurring jobs.
        """
        store, queue = await self._scheduling()
        where = f"{self._where} schedule {key!r}"
        check_id(key, where)
        now = time.time()
        try:
            interval = optional_seconds(every, f"{where}: every")
            check_recurrence(cron, interval, timezone, where, now)
            if missed not in get_args(Missed):
                raise ConfigurationError(f"{where}: missed={missed!r} is not one, all or skip")
        except ConfigurationError as error:
            raise InvalidJobError(str(error)) from None
        if options.get("delay") or options.get("unique"):
            raise InvalidJobError(f"{where}: a schedule has neither delay nor unique")
        message, _ = self._maker.make(name, data, key, options)
        stored = JobSchedule(
            key=key,
            name=name,
            cron=cron,
            every=interval,
            timezone=timezone,
            missed=missed,
            body=message.body,
            headers={one: value for one, value in message.headers.items() if one not in _OF_ONE},
        )
        known = await calling(store.list_schedules(queue), self._name)
        next_at = next((one.next_at for one in known if _same_times(one, stored)), None)
        if next_at is None:
            next_at = first_time(stored, now)
        stored = msgspec.structs.replace(stored, next_at=next_at)
        await calling(store.put_schedule(queue, stored), self._name)
        return schedule_from(stored)

    async def schedules(self) -> builtins.list[Schedule]:
        """All recurring jobs, by the time when they are due next."""
        store, queue = await self._scheduling()
        return [
            schedule_from(one) for one in await calling(store.list_schedules(queue), self._name)
        ]

    async def unschedule(self, key: str) -> bool:
        """End a recurring job; False if there is none with that key. Jobs that it added stay."""
        store, queue = await self._scheduling()
        return await calling(store.remove_schedule(queue, key), self._name)

    async def _scheduling(self) -> tuple[JobScheduling, str]:
        store, queue = await self._store("schedules", "keep recurring jobs")
        assert isinstance(store, JobScheduling)
        return store, queue

    async def _store(self, ability: str | None, what: str) -> tuple[Any, str]:
        provider = await self.open()
        assert self._full_name is not None
        if ability is not None and not getattr(provider.capabilities, ability):
            raise JobsUnsupportedError(
                f"{self._where} the provider {provider.transport.name!r} cannot {what}",
                queue=self._name,
            )
        return provider.store, self._full_name

    def _named_as_here(self, job: Job[Any]) -> Job[Any]:
        return job if job.queue == self._name else msgspec.structs.replace(job, queue=self._name)


_OF_ONE = (names.ID, names.CREATED_AT)
"""Headers that every job of a schedule has its own of."""


def _same_times(one: JobSchedule, other: JobSchedule) -> bool:
    return (one.key, one.cron, one.every, one.timezone) == (
        other.key,
        other.cron,
        other.every,
        other.timezone,
    )


def _named(error: MatadorError, queue: str, job_id: str) -> JobError:
    found = job_error(error, queue, job_id)
    if found is not error:
        found.__cause__ = error
    return found
