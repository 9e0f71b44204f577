"""``Worker``: runs the jobs of a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, cast
from uuid import uuid4

from matador.errors import ConfigurationError, LifecycleError, MatadorError
from matador.jobs.events import (
    Observable,
    QueueDrained,
    QueueErrored,
    QueuePaused,
    QueueResumed,
    ShutdownTimeout,
    WorkerShuttingDown,
)
from matador.jobs.functions import JobFunction, handler_function
from matador.jobs.handler import JobHandler
from matador.jobs.job import ActiveJob
from matador.jobs.processes import Processes, reference
from matador.jobs.provider import JobProvider, ProviderLike, provider_for
from matador.jobs.queue import Queue
from matador.jobs.recording import JobRecording
from matador.jobs.schedules import Scheduler
from matador.jobs.unsupported import OnUnsupported, UnsupportedOptions
from matador.model.job_limits import NO_LIMITS, JobLimits, RateLimit
from matador.model.message import ConnectionState, Delivery, Receipt
from matador.model.options import (
    Seconds,
    optional_seconds,
    optional_whole_number,
    seconds,
    whole_number,
)
from matador.runtime.deadline import GRACE, Deadline
from matador.runtime.health import Health
from matador.runtime.process import run as run_process
from matador.runtime.recorder import Recorder, Recorders, check_recorder
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import (
    JobLimiting,
    JobScheduling,
    Pausing,
    Prefetching,
    Subscription,
)
from matador.transports.clock import Clock, SystemClock

log = logging.getLogger("matador.jobs")

Executor: TypeAlias = Literal["async", "thread", "process"]
"""Where handlers run. ``async``: async ones in the event loop, sync ones in threads. ``thread``:
all in threads. ``process``: in processes of their own, for work that keeps a processor busy."""

EXECUTORS: tuple[Executor, ...] = ("async", "thread", "process")

MAX_DELIVERIES = 5
"""A job that was delivered so often without an outcome (its worker died each time) is failed."""

_QUIET = 0.05  # seconds without a job after which a queue counts as drained

Handlers: TypeAlias = Callable[..., Any] | Mapping[str, Callable[..., Any]]
"""One handler for all jobs, or handlers by the names of the jobs."""


class Worker(Observable):
    """Runs the jobs of a queue, until it is closed.

    Args:
        queue: the name of the queue, or the ``Queue`` itself, whose provider it shares.
        handler: a function of the job, or functions by the names of jobs. None: what the ``Queue``
            declares with ``@queue.job``.
        provider: see ``Queue``. Not with a ``Queue``.
        concurrency: how many jobs run at once.
        batch_size: how many jobs are fetched at once at most. None: as many as there is room for.
        poll_interval: seconds to leave the queue alone once it was found empty. None: a new job
            is fetched as soon as the provider says so.
        error_backoff: seconds to wait after an error of the provider.
        executor: where handlers run.
        timeout: seconds that an attempt may take. What runs in a thread cannot be ended: it is
            waited for, and a warning is logged.
        rate_limit: how many jobs start in how many seconds, over all workers of the queue.
        concurrency_per_key: how many jobs with one ``concurrency_key`` run at once, over all
            workers of the queue. Give all workers the same limits.
        on_unsupported: called for each limit that the provider cannot honour. None: that of the
            ``Queue``, if there is one.
        journal: records each attempt, for the data pipeline: ``matador.observe.Journal``. None:
            that of the ``Queue``, if there is one.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> worker = Worker("emails", handle, provider="redis://localhost", concurrency=10)
        >>> worker.on("failed", lambda event: print(event.job_id, event.error))
        >>> worker.run()  # until SIGTERM; in a program of yours: async with worker
    """

    def __init__(
        self,
        queue: str | Queue,
        handler: Handlers | None = None,
        *,
        provider: ProviderLike | None = None,
        concurrency: int = 10,
        batch_size: int | None = None,
        poll_interval: Seconds | None = None,
        error_backoff: Seconds = 1.0,
        executor: Executor = "async",
        timeout: Seconds | None = None,
        rate_limit: RateLimit | None = None,
        concurrency_per_key: int | None = None,
        on_unsupported: OnUnsupported | None = None,
        max_deliveries: int = MAX_DELIVERIES,
        journal: Recorder | None = None,
    ) -> None:
        name = queue.name if isinstance(queue, Queue) else queue
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"[Worker] queue must be a Queue or a non-empty string, got {queue!r}"
            )
        where = self._where = f"[Worker:{name}]"
        super().__init__(where, name)
        if isinstance(queue, Queue) and provider is not None:
            raise ConfigurationError(f"{where} give a Queue, or a provider, but not both")
        self._queue = name
        self._given: Queue | ProviderLike | None = queue if isinstance(queue, Queue) else provider
        self._functions = _functions(queue, handler, where)
        self._concurrency = whole_number(concurrency, f"{where} concurrency", minimum=1)
        if batch_size is not None:
            whole_number(batch_size, f"{where} batch_size", minimum=1)
        self._batch_size = batch_size
        self._poll_interval = optional_seconds(poll_interval, f"{where} poll_interval")
        self._error_backoff = seconds(error_backoff, f"{where} error_backoff")
        if executor not in EXECUTORS:
            raise ConfigurationError(
                f"{where} executor={executor!r} is not one of {', '.join(EXECUTORS)}"
            )
        self._executor: Executor = executor
        self._processes: Processes | None = None
        if executor == "process":
            for function in self._functions.values():
                reference(function)
            self._processes = Processes()
        self._timeout = optional_seconds(timeout, f"{where} timeout")
        self._max_deliveries = whole_number(max_deliveries, f"{where} max_deliveries", minimum=1)
        self._limits = _limits(rate_limit, concurrency_per_key, where)
        if on_unsupported is None and isinstance(queue, Queue):
            on_unsupported = queue.on_unsupported
        self._unsupported = UnsupportedOptions(name, where, on_unsupported)
        self._subscriptions: list[JobSubscription] = []
        if journal is None and isinstance(queue, Queue):
            journal = queue.journal
        check_recorder(journal, where)
        self._recorder = journal
        self._recording = None if journal is None else JobRecording(journal, name)
        self._clock: Clock = SystemClock()
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._provider: JobProvider | None = None
        self._worker: DeliveryWorker | None = None
        self._scheduler: Scheduler | None = None
        self._paused = False
        self._resizing: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Worker({self._queue!r}, concurrency={self._concurrency})"

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def functions(self) -> Mapping[str | None, JobFunction]:
        """The functions that run jobs, by their names; None: those of every name."""
        return dict(self._functions)

    @property
    def provider(self) -> JobProvider | None:
        """Where the jobs are kept; None before the first start."""
        return self._provider

    @property
    def recorder(self) -> Recorder | None:
        """What records each attempt: the ``journal`` it was given, and what was added."""
        return self._recorder

    def add_recorder(self, recorder: Recorder) -> None:
        """Have one more recorder record each attempt, metrics say, beside the ``journal``.

        Raises:
            ConfigurationError: it is not a recorder.
            LifecycleError: the worker is running.
        """
        check_recorder(recorder, self._where)
        if self._worker is not None:
            raise LifecycleError(f"{self._where} is running: add recorders before it is started")
        before = self._recorder
        self._recorder = recorder if before is None else Recorders(before, recorder)
        self._recording = JobRecording(self._recorder, self._queue)

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect, and begin to run jobs.

        Raises:
            LifecycleError: it has been started.
        """
        if self._worker is not None:
            raise LifecycleError(f"{self._where} is running already; close it first")
        given = self._given
        if isinstance(given, Queue):
            provider = given.provider
        else:
            provider = provider_for(given, self._queue, self._where)
        full_name = await provider.open(self._queue, self)
        if self._recording is not None:
            self._recording.start(provider.transport.name)
        worker = DeliveryWorker(
            provider.transport,
            clock=self._clock,
            max_deliveries=self._max_deliveries,
            on_settle_error=self._settle_failed,
        )
        handler = JobHandler(
            worker,
            queue=self._queue,
            worker_id=self.id,
            functions=self._functions,
            run=self._runner(worker),
            can_be_ended=self._can_be_ended,
            store=provider.store,
            emitter=self._emitter,
            clock=self._clock,
            timeout=self._timeout,
            max_deliveries=self._max_deliveries,
            recording=self._recording,
        )
        self._provider, self._worker = provider, worker
        self._subscriptions.clear()
        self._closing = None
        try:
            await worker.start(
                handler if self._recording is None else self._recording.handling(handler),
                {full_name: self._concurrency},
                read_ahead=lambda _: False,  # never more than can be processed
                around=self._around,
            )
        except BaseException:
            await self.close(finish_active=False)
            raise
        if self._paused:
            await worker.pause()
        store = provider.store
        if isinstance(store, JobScheduling) and not store.fires_schedules:
            self._scheduler = Scheduler(
                store,
                full_name,
                self._clock,
                self._provider_failed,
                self._error_backoff,
                None if self._recording is None else self._recording.added,
            )
            self._scheduler.start()

    async def close(
        self, timeout: Seconds = 30.0, *, finish_active: bool = True, disconnect: bool = False
    ) -> None:
        """Stop receiving, wait for jobs that run, and let go of the provider. Idempotent.

        Args:
            timeout: seconds to wait for jobs that run. Then they are cancelled and given back:
                they will run again, and the attempt does not count. That takes a few seconds at
                most, even if the broker does not answer.
            finish_active: False: do not wait for them at all.
            disconnect: disconnect the provider even if it was given, and others may use it.
        """
        limit = seconds(timeout, f"{self._where} close: timeout")
        if self._worker is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(limit, finish_active, disconnect))
        await asyncio.shield(self._closing)

    async def _close(self, limit: float, finish_active: bool, disconnect: bool) -> None:
        worker, provider = self._worker, self._provider
        assert worker is not None
        assert provider is not None
        limit = limit if finish_active else 0.0
        deadline = Deadline(limit + GRACE, self._where)

        def stopped() -> None:
            self._emitter.emit("shutting_down", WorkerShuttingDown(queue=self._queue))

        def late() -> None:
            if finish_active:
                self._tell_timeout(limit)

        try:
            if self._scheduler is not None:
                await self._scheduler.stop()
                self._scheduler = None
            abandoned = await worker.end(limit, deadline, stopped=stopped, late=late)
            if abandoned:
                log.warning("%s abandoned: %s", self._where, ", ".join(abandoned))
            if self._processes is not None:
                await self._processes.close()
        finally:
            self._worker = None
            if self._recording is not None:
                await self._recording.stop()
            await provider.close(self, disconnect=disconnect, deadline=deadline)
            await self._emitter.close()

    def _tell_timeout(self, limit: float) -> None:
        active = self.active_jobs
        text = f"{active} jobs were still running after {limit:g} s; they are given back"
        log.warning("%s %s", self._where, text)
        event = ShutdownTimeout(queue=self._queue, timeout=limit, active_jobs=active, message=text)
        self._emitter.emit("shutdown_timeout", event)

    async def shutdown(self) -> None:
        """``close`` with its defaults."""
        await self.close()

    async def force_shutdown(self) -> None:
        """Close at once: jobs that run are cancelled and given back."""
        if self._worker is not None:
            await self._worker.interrupt(GRACE)
        await self.close(finish_active=False)

    def run(self) -> None:
        """Run jobs until SIGTERM or SIGINT, then close. A second signal forces it."""
        run_process(self)

    # -- while it runs ----------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """It was started, and not closed."""
        return self._worker is not None

    def health(self) -> Health:
        """The health of the connection and of the queue. A worker that is paused is healthy.

        Example:
            >>> worker.health().status
            'healthy'
        """
        worker, provider = self._worker, self._provider
        if worker is None or provider is None:
            return Health(ConnectionState("disconnected"))
        return Health(provider.transport.state, worker.health)

    @property
    def active_jobs(self) -> int:
        """How many jobs it is running."""
        consumers = () if self._worker is None else self._worker.consumers
        return sum(consumer.in_progress for consumer in consumers)

    @property
    def concurrency(self) -> int:
        """How many jobs run at once. Can be set while it runs; running jobs are not disturbed."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._concurrency = whole_number(concurrency, f"{self._where} concurrency", minimum=1)
        for consumer in () if self._worker is None else self._worker.consumers:
            task = asyncio.get_running_loop().create_task(consumer.resize(concurrency))
            self._resizing.add(task)
            task.add_done_callback(self._resized)

    def _resized(self, task: asyncio.Task[None]) -> None:
        self._resizing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._emitter.emit("error", QueueErrored(queue=self._queue, error=error))

    @property
    def rate_limit(self) -> RateLimit | None:
        """How often jobs start, over all workers of the queue. Can be set while it runs."""
        return self._limits.rate

    @rate_limit.setter
    def rate_limit(self, rate_limit: RateLimit | None) -> None:
        self._set_limits(_limits(rate_limit, self._limits.per_key, self._where))

    @property
    def concurrency_per_key(self) -> int | None:
        """How many jobs of a key run at once, over all workers of the queue. Can be set while it
        runs; running jobs are not disturbed."""
        return self._limits.per_key

    @concurrency_per_key.setter
    def concurrency_per_key(self, concurrency_per_key: int | None) -> None:
        self._set_limits(_limits(self._limits.rate, concurrency_per_key, self._where))

    def _set_limits(self, limits: JobLimits) -> None:
        self._limits = limits
        if self._worker is not None and self._subscriptions:
            supported = self._supported_limits()
            for subscription in self._subscriptions:
                subscription.set_limits(supported)

    async def pause(self) -> None:
        """Receive no job until ``resume``. Jobs that run go on. Other workers are not affected."""
        self._paused = True
        if self._worker is not None:
            await self._worker.pause()
        self._emitter.emit("paused", QueuePaused(queue=self._queue))

    async def resume(self) -> None:
        """Receive jobs again."""
        self._paused = False
        if self._worker is not None:
            self._worker.resume()
        self._emitter.emit("resumed", QueueResumed(queue=self._queue))

    # -- inside -----------------------------------------------------------------------------------

    def _runner(self, worker: DeliveryWorker) -> Callable[[JobFunction, ActiveJob[Any]], Any]:
        if self._processes is not None:
            return self._processes.run
        in_thread = self._executor == "thread"

        async def run(function: JobFunction, job: ActiveJob[Any]) -> Any:
            if function.is_async and not in_thread:
                return await function.call(job)
            call = _in_own_loop(function) if function.is_async else function.call
            return await worker.calls.in_thread(call, job, limit=None, who=f"job {job.id!r}")

        return run

    def _can_be_ended(self, function: JobFunction) -> bool:
        """A process can be killed and a task cancelled. A thread can only be waited for."""
        return self._executor == "process" or (self._executor == "async" and function.is_async)

    def _settle_failed(self, receipt: Receipt, error: MatadorError) -> None:
        self._provider_failed(error)

    def _provider_failed(self, error: Exception) -> None:
        self._emitter.emit("error", QueueErrored(queue=self._queue, error=error))

    def _around(self, inner: Subscription) -> Subscription:
        subscription = JobSubscription(
            inner,
            batch_size=self._batch_size,
            poll_interval=self._poll_interval,
            error_backoff=self._error_backoff,
            failed=self._provider_failed,
            drained=lambda: self._emitter.emit("drained", QueueDrained(queue=self._queue)),
        )
        others = [one for one in self._subscriptions if one.active]
        self._subscriptions = [*others, subscription]
        if self._limits != NO_LIMITS:
            subscription.set_limits(self._supported_limits())
        return subscription

    def _supported_limits(self) -> JobLimits:
        """The limits that the provider can honour. The others are warned about and left out."""
        assert self._provider is not None
        can, rate, per_key = self._provider.capabilities, self._limits.rate, self._limits.per_key
        report, provider = self._unsupported.report, self._provider.transport.name
        if rate is not None and not can.rate_limit:
            report("rate_limit", rate, provider)
            rate = None
        if per_key is not None and not can.concurrency_per_key:
            report("concurrency_per_key", per_key, provider)
            per_key = None
        return JobLimits(rate, per_key)


class JobSubscription:
    """A subscription with what a worker of jobs adds: batches, intervals, errors, ``drained``."""

    def __init__(
        self,
        inner: Subscription,
        *,
        batch_size: int | None,
        poll_interval: float | None,
        error_backoff: float,
        failed: Callable[[Exception], None],
        drained: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._batch_size = batch_size
        self._poll_interval = poll_interval
        self._error_backoff = error_backoff
        self._failed = failed
        self._drained = drained
        self._received = False
        self._quiet: asyncio.TimerHandle | None = None

    def set_limits(self, limits: JobLimits) -> None:
        """See ``JobLimiting``. Providers that declare no limits are given none."""
        if isinstance(self._inner, JobLimiting):
            self._inner.set_limits(limits)

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._inner.queue

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._inner.active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``. Errors are told and waited out here."""
        if self._batch_size is not None:
            limit = min(limit, self._batch_size)
        while True:
            self._watch()
            look = asyncio.timeout(None if self._poll_interval is None else _QUIET)
            try:
                async with look:
                    found = await self._inner.receive(limit)
            except Exception as error:  # noqa: BLE001 - told, and tried again
                if look.expired():
                    await asyncio.sleep(self._poll_interval or 0)
                    continue
                if not self._inner.active:
                    return ()
                self._failed(error)
                log.warning(
                    "could not receive jobs of %s, trying again in %g s: %s",
                    self.queue,
                    self._error_backoff,
                    error,
                )
                await asyncio.sleep(self._error_backoff)
                continue
            finally:
                if self._quiet is not None:
                    self._quiet.cancel()
            self._received = self._received or bool(found)
            return found

    def _watch(self) -> None:
        self._quiet = asyncio.get_running_loop().call_later(_QUIET, self._is_quiet)

    def _is_quiet(self) -> None:
        if self._received and isinstance(self._inner, JobLimiting) and self._inner.limited:
            self._watch()  # there are jobs, but it is not their turn
        elif self._received:
            self._received = False
            self._drained()

    async def close(self) -> None:
        """See ``Subscription``."""
        await self._inner.close()

    async def pause(self) -> None:
        """See ``Pausing``."""
        if isinstance(self._inner, Pausing):
            await self._inner.pause()

    async def set_prefetch(self, prefetch: int) -> None:
        """See ``Prefetching``."""
        if isinstance(self._inner, Prefetching):
            await self._inner.set_prefetch(prefetch)


def _limits(rate: RateLimit | None, per_key: int | None, where: str) -> JobLimits:
    if rate is not None and not isinstance(rate, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(
            f"{where} rate_limit must be RateLimit(max, per=seconds), got {rate!r}"
        )
    optional_whole_number(per_key, f"{where} concurrency_per_key", minimum=1)
    return JobLimits(rate, per_key)


def _in_own_loop(function: JobFunction) -> Callable[[ActiveJob[Any]], Any]:
    return lambda job: asyncio.run(function.call(job))


def _functions(
    queue: str | Queue, handler: Handlers | None, where: str
) -> Mapping[str | None, JobFunction]:
    if handler is None:
        declared = queue.declared if isinstance(queue, Queue) else None
        if not declared:
            raise ConfigurationError(
                f"{where} has no handler: give a function, functions by the names of jobs, or a "
                f"Queue with jobs declared by @queue.job"
            )
        return declared
    if isinstance(handler, Mapping):
        if not handler:
            raise ConfigurationError(f"{where} the mapping of handlers is empty")
        by_name = cast("Mapping[str, Callable[..., Any]]", handler)
        return {
            name: handler_function(one, f"{where} handler of {name!r}:")
            for name, one in by_name.items()
        }
    return {None: handler_function(handler, f"{where} handler:")}
