"""Jobs as a way in: decodes the job of a delivery and runs its function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from matador.errors import (
    InvalidJobError,
    JobCanceledError,
    JobTimeoutError,
    LeaseLostError,
    MatadorError,
    PermanentJobError,
)
from matador.jobs.dead_letters import checkpoint_id
from matador.jobs.events import JobEvents
from matador.jobs.flows import INTO, step_id, with_results
from matador.jobs.functions import JobFunction, JobRoute
from matador.jobs.job import ActiveJob, JobControl, encode_json
from matador.jobs.options import DEFAULT_ATTEMPTS, DEFAULT_BACKOFF, read_backoff
from matador.jobs.processes import Processes
from matador.jobs.wire import (
    MOST_ERROR,
    NO_ROUTE,
    JobWork,
    correlation_id_of,
    received,
    successor,
    was_canceled,
)
from matador.model import job as names
from matador.model.job import JobRecord
from matador.model.message import DeadLetter, Delivery, Headers, Message, Receipt, Settlement
from matador.model.text import SHORT_TEXT, error_text, storable_text
from matador.model.topology import DeadLetterKind
from matador.policy.backoff import Backoff, Exponential
from matador.policy.retry import (
    CustomRetryPolicy,
    Decision,
    RetryPolicy,
    SendToDeadLetters,
    StandardRetryPolicy,
)
from matador.runtime.context import Context
from matador.runtime.dedup import Deduplicator
from matador.runtime.facts import EPOCH, Received, moment
from matador.runtime.leases import LeaseKeeper
from matador.runtime.stores import patiently
from matador.runtime.way import Asked, Call, Failure, Refusal, RefusalKind, Scope, WayIn
from matador.transports.base import JobFlows, JobStoring
from matador.transports.clock import Clock
from matador.transports.kit.jobs import whole

log = logging.getLogger("matador.jobs")

_PATIENCE = 10.0  # seconds to wait for the results of a flow before the job goes back to its queue
_UNSAID = (DEFAULT_BACKOFF, Exponential(DEFAULT_BACKOFF.delay))  # the second one is BullMQ's


class JobRetries:
    """Chooses the retry policy of a job.

    The ``attempts`` and ``backoff`` of the job apply. If a job was added with the defaults, the
    policy of its worker applies, if it has one.
    """

    def __init__(self, given: RetryPolicy | None) -> None:
        self._given = given
        self.max_deliveries = (given or StandardRetryPolicy()).max_deliveries
        """The number of deliveries without an outcome after which a job is refused."""

    def policy(self, job: JobWork) -> RetryPolicy:
        """The policy for a job."""
        return self._given_for(job.max_attempts, job.backoff) or CustomRetryPolicy(
            job.max_attempts,
            delays=job.backoff.wait,
            jitter=job.backoff.jitter,
            max_deliveries=self.max_deliveries,
        )

    def max_attempts(self, headers: Headers) -> int:
        """The maximum number of attempts of a job with these headers."""
        attempts = max(1, whole(headers, names.MAX_ATTEMPTS, 1))
        return self.max_attempts_of(attempts, read_backoff(headers.get(names.BACKOFF)))

    def max_attempts_of(self, attempts: int, backoff: Backoff) -> int:
        """The maximum number of attempts of a job added with these options."""
        return getattr(self._given_for(attempts, backoff), "max_attempts", attempts)

    def _given_for(self, attempts: int, backoff: Backoff) -> RetryPolicy | None:
        if self._given is None or attempts != DEFAULT_ATTEMPTS or backoff not in _UNSAID:
            return None
        return self._given


_LOOK = 1.0  # seconds between polls for canceled jobs


class _Running:
    """A running job, in a task of the event loop or in a thread."""

    __slots__ = ("active", "error", "looked_at", "task", "work")

    def __init__(
        self, work: JobWork, task: asyncio.Task[Any] | None, active: ActiveJob[Any] | None = None
    ) -> None:
        self.work = work
        self.active = active
        self.task = task
        self.error: JobCanceledError | None = None
        self.looked_at = False

    def cancel(self, error: JobCanceledError) -> None:
        self.error = error
        if self.task is not None:
            self.task.cancel()
        elif self.active is not None and self.active.control is not None:
            self.active.control.lose()


class RunningJobs:
    """The running jobs of a worker. Polls for canceled ones.

    Canceling a job already makes it a failed job in the provider, so it cannot run again. This
    class only ends its handler soon.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: set[_Running] = set()
        self._settled: dict[int, Receipt] = {}  # referenced, so that its id is not reused

    async def run(self, work: JobWork, call: Awaitable[Any]) -> Any:
        """Await the handler of a job, until it is canceled.

        Raises:
            JobCanceledError: it was canceled meanwhile.
        """
        one, result = _Running(work, asyncio.current_task(self._loop)), None
        self._running.add(one)
        try:
            result = await call
        except asyncio.CancelledError:
            if one.error is None:
                raise
        finally:
            self._running.discard(one)
        if one.error is None:
            return result
        if one.task is not None:
            one.task.uncancel()
        raise one.error

    def in_thread(
        self,
        work: JobWork,
        active: ActiveJob[Any],
        run: Callable[[ActiveJob[Any]], Any],
    ) -> Callable[[ActiveJob[Any]], Any]:
        """A function for a thread, which cannot be stopped: its result is ignored if the job was
        canceled meanwhile."""
        one = _Running(work, None, active)
        self._running.add(one)

        def call(job: ActiveJob[Any]) -> Any:
            try:
                result = run(job)
            finally:
                self._loop.call_soon_threadsafe(self._running.discard, one)
            if one.error is not None:
                raise one.error
            return result

        return call

    def settled(self, delivery: Delivery) -> bool:
        """Whether the job of this delivery was canceled, which settled it."""
        return self._settled.pop(id(delivery.receipt), None) is not None

    async def watch(
        self, find: Callable[[Sequence[str]], Awaitable[Sequence[JobRecord | None]]]
    ) -> None:
        """Cancel the handlers of canceled jobs until this task is canceled."""
        while True:
            await asyncio.sleep(_LOOK)
            long = [one for one in self._running if one.looked_at and one.error is None]
            for one in self._running:
                one.looked_at = True  # most jobs end before the next poll
            if not long:
                continue
            try:
                records = await find([one.work.id for one in long])
            except Exception as error:  # noqa: BLE001 - the next poll may succeed
                log.debug("could not check whether running jobs were canceled: %s", error)
                continue
            for one, record in zip(long, records, strict=True):
                if record is not None and was_canceled(record.status, record.error):
                    self._cancel(one, record.error or "")

    def _cancel(self, one: _Running, reason: str) -> None:
        if one not in self._running or one.work.route.at_most_once:
            return
        error = JobCanceledError(f"job {one.work.id!r} was {reason}", job_id=one.work.id)
        receipt = one.work.delivery.receipt
        self._settled[id(receipt)] = receipt
        one.cancel(error)


@dataclass(kw_only=True, eq=False)
class JobWay(WayIn):
    """Runs the jobs of a queue.

    Attributes:
        queue: the short name of the queue.
        routes: by the names of the jobs; ``None``: for all others.
        store: the job store.
        transport: its name.
        leases: reports lost leases to jobs; None: jobs have no leases.
        events: notifies the worker's listeners.
        retries: chooses the retry policy of a job.
        clock: the source of time.
        processes: runs handlers in child processes; None: they run in this process.
        running: the jobs that run, to be canceled; None: the provider cannot cancel jobs.
        sender: adds a job to the same queue.
    """

    queue: str
    routes: Mapping[str | None, JobRoute]
    store: JobStoring
    transport: str
    leases: LeaseKeeper | None
    events: JobEvents
    retries: JobRetries
    clock: Clock
    processes: Processes | None
    running: RunningJobs | None
    sender: Callable[..., Awaitable[Any]]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # stored, because asking costs a system call
        self._can = self.store.job_capabilities
        self._others = self.routes.get(None)
        self.open = self._opened
        if self._can.results:
            self.encode = self._encoded

    # -- read -------------------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> JobWork | Refusal:
        work = received(delivery, self.clock.time())
        route = self.routes.get(work.name, self._others)
        if route is not None:
            work.route = route
        if delivery.problem is not None:
            error = InvalidJobError(f"it cannot be run: {delivery.problem}")
            return self._refusal(work, error, "malformed")
        if route is None:
            known = ", ".join(sorted(one for one in self.routes if one is not None))
            name = storable_text(work.name, SHORT_TEXT)
            unknown = InvalidJobError(f"no handler for jobs named {name!r} (there are: {known})")
            return self._refusal(work, unknown, "unhandled")
        return work

    def _opened(self, work: JobWork) -> Refusal | None:
        if INTO in work.delivery.headers:
            return None  # the data is complete once the results of other jobs are available
        route = cast("JobRoute", work.route)
        try:
            work.data = _decoded(route.function, work.encoded)
        except InvalidJobError as error:
            return self._refusal(work, error, "malformed")
        return None

    def _refusal(self, work: JobWork, error: InvalidJobError, kind: RefusalKind) -> Refusal:
        error.queue, error.job_id = self.queue, work.id
        return Refusal(work.delivery, error, kind, work)

    # -- run --------------------------------------------------------------------------------------

    def call(self, work: JobWork, scope: Scope | None) -> Call:
        route = cast("JobRoute", work.route)
        function, active = route.function, self._active(work, scope)
        self.events.active(work)
        waited = names.CHILDREN in work.delivery.headers or INTO in work.delivery.headers
        if route.is_async:
            run = function.call if self.processes is None else partial(self.processes.run, function)
            call = self._after(work, active, run) if waited else run(active)
            return call if self.running is None else self.running.run(work, call)
        run = _in_own_loop(function) if function.is_async else function.call
        loop, running = self._loop, self.running
        if running is not None:
            run = running.in_thread(work, active, run)
        if not waited:
            return partial(run, active)

        def in_thread() -> Any:
            complete = self._complete(work, active)
            return run(asyncio.run_coroutine_threadsafe(complete, loop).result())

        return in_thread

    async def _after(self, work: JobWork, active: ActiveJob[Any], run: Callable[..., Any]) -> Any:
        return await run(await self._complete(work, active))

    async def _complete(self, work: JobWork, active: ActiveJob[Any]) -> ActiveJob[Any]:
        """The job of a flow with the results that it waited for.

        Raises:
            StoreUnavailableError: the store does not answer; nothing has run yet.
            PermanentJobError: a result is missing, or they do not fit the function.
        """
        store, headers = self.store, work.delivery.headers
        results: Mapping[str, bytes | None] = {}
        if isinstance(store, JobFlows):
            queue = work.delivery.receipt.queue
            results = await patiently(
                lambda: store.child_results(queue, work.id),
                f"{self.label(work)}: could not load the results of its steps",
                _PATIENCE,
            )
        steps = max(1, whole(headers, names.CHILDREN))
        if len(results) < steps:
            gone = next(one for n in range(steps) if (one := step_id(work.id, n)) not in results)
            raise PermanentJobError(
                f"job {gone!r}, which it waited for, has failed: it was removed",
                queue=self.queue,
                job_id=work.id,
            )
        if INTO not in headers:
            return active
        data = with_results(work.encoded, str(headers[INTO]), results)
        try:
            complete = _decoded(cast("JobRoute", work.route).function, data)
        except InvalidJobError as error:  # they would be the same in the next attempt
            raise PermanentJobError(str(error), queue=self.queue, job_id=work.id) from error
        return msgspec.structs.replace(active, data=complete)

    def _active(self, work: JobWork, scope: Scope | None) -> ActiveJob[Any]:
        receipt = work.delivery.receipt
        control = JobControl(
            partial(self._progress, work),
            self._loop,
            partial(self._context, work) if scope is None else self._context(work, scope),
        )
        if scope is None and self.leases is not None:
            self.leases.when_lost(receipt, control.lose)
        return ActiveJob(
            id=work.id,
            name=work.name,
            queue=self.queue,
            data=work.data,
            status="active",
            attempts=work.attempt - 1,
            max_attempts=self.retries.max_attempts_of(work.max_attempts, work.backoff),
            created_at=moment(work.created_at) or EPOCH,
            processed_at=moment(work.received_at),
            error=work.error,
            priority=receipt.priority,
            metadata=work.metadata,
            provider_metadata={
                "receipt": receipt.handle,
                "delivery_count": receipt.delivery_count,
            },
            control=control,
        )

    def _context(self, work: JobWork, scope: Scope | None = None) -> Context:
        return Context(
            scope,
            work.delivery,
            id=work.id,
            attempt=work.attempt,
            metadata=work.metadata,
            correlation_id=correlation_id_of(work.delivery.headers),
            sender=self.sender,
        )

    async def _progress(self, work: JobWork, encoded: bytes, progress: Any) -> None:
        if self._can.progress:
            try:
                await self.store.set_progress(work.delivery.receipt, encoded)
            except LeaseLostError:
                raise
            except MatadorError as error:  # a handler must not fail because of its progress
                log.warning("the progress of job %s was not stored: %s", work.id, error)
        self.events.progress(work, progress)

    def _encoded(self, work: JobWork, result: Any) -> bytes | None:
        if result is None:
            return None
        return encode_json(result, f"job {work.id!r}: what the handler returned")

    def late(self, work: JobWork, limit: float) -> JobTimeoutError:
        return JobTimeoutError(
            f"job {work.id!r} took longer than its timeout of {limit:g} s",
            queue=self.queue,
            job_id=work.id,
        )

    # -- decide -----------------------------------------------------------------------------------

    def policy(self, work: JobWork) -> RetryPolicy:
        return self.retries.policy(work)

    def decide(self, work: JobWork, error: Exception, asked: Asked, random: float) -> Decision:
        decision = super().decide(work, error, asked, random)
        if isinstance(decision, SendToDeadLetters):  # providers show the reason as the job's error
            return SendToDeadLetters(decision.kind, error_text(error, MOST_ERROR))
        return decision

    def successor(self, work: JobWork, failure: Failure) -> Message:
        return successor(work, failure, self.clock.time())

    def letter(self, letter: DeadLetter, delivery: Delivery) -> Settlement | None:
        if self.running is not None and self.running.settled(delivery):
            return None  # it is already a failed job, and this delivery is no longer in flight
        return letter

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        return "undeliverable"

    def checkpoint_id(self, work: JobWork) -> str:
        return checkpoint_id(work.delivery.receipt.queue, work.id, work.delivery)

    def duplicate_key(self, work: JobWork, dedup: Deduplicator) -> str:
        named = names.ID in work.delivery.headers
        key = dedup.key_of(work.id if named else None, work.encoded, lambda: self.keyed(work))
        return f"{work.delivery.receipt.queue}:{key}"

    # -- describe ---------------------------------------------------------------------------------

    def fact(self, work: JobWork) -> Received:
        properties, headers = work.delivery.properties, work.delivery.headers
        correlation_id = None if properties is None else properties.correlation_id
        if names.CORRELATION_ID in headers:
            correlation_id = correlation_id_of(headers)
        return Received(
            "job",
            work.id,
            work.name,
            self.queue,
            self.transport,
            work.delivery,
            work.attempt,
            work.created_at,
            work.due_at,
            correlation_id,
            work.metadata,
            known=work.route is not NO_ROUTE,
            data=work.encoded,
            handler=work.route.handler,
        )

    def unread(self, delivery: Delivery) -> Received:
        return self.fact(received(delivery, self.clock.time()))

    def label(self, work: JobWork) -> str:
        id_, name = (storable_text(text, SHORT_TEXT) for text in (work.id, work.name))
        handler, what = work.route.handler, f"job {id_} ({name}) of {self.queue}"
        return f"{handler}: {what}" if handler else what


def _decoded(function: JobFunction, data: bytes) -> Any:
    """The data of a job in the type that its function takes.

    Raises:
        InvalidJobError: they do not fit.
    """
    try:
        return function.decode(data)
    except Exception as error:  # a user's validator may raise anything
        raise InvalidJobError(f"invalid data: {error_text(error, SHORT_TEXT)}") from error


def _in_own_loop(function: JobFunction) -> Callable[[ActiveJob[Any]], Any]:
    return lambda job: asyncio.run(function.call(job))
