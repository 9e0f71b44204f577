"""``Worker``: runs the jobs of a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import uuid4

from matador.errors import ConfigurationError, UnsupportedError
from matador.jobs.dead_letters import FailedJobs, JobReader
from matador.jobs.events import (
    EventName,
    JobEvents,
    QueueDrained,
    QueuePaused,
    QueueResumed,
    ShutdownTimeout,
    WorkerShuttingDown,
)
from matador.jobs.functions import JobFunction, JobRoute, handler_function
from matador.jobs.job import Job
from matador.jobs.options import OnUnsupported
from matador.jobs.processes import Processes, reference
from matador.jobs.provider import JobProvider, ProviderLike, calling, jobs_topology
from matador.jobs.queue import Queue
from matador.jobs.schedules import Scheduler
from matador.jobs.service import JobService, ReceivingOptions, check_queue_name
from matador.jobs.way import JobRetries, JobWay, RunningJobs
from matador.model.arguments import check_arguments
from matador.model.capabilities import DeliveryMode
from matador.model.job_limits import NO_LIMITS, JobLimits, RateLimit
from matador.model.message import Delivery, Receipt
from matador.model.options import (
    Seconds,
    one_of,
    optional_seconds,
    optional_whole_number,
    seconds,
    whole_number,
)
from matador.model.subscriber import Idempotency
from matador.model.topology import Topology
from matador.policy.dedup import Deduplication
from matador.policy.retry import RetryPolicy
from matador.runtime.checkpoints import CheckpointStore, NoCheckpointStore
from matador.runtime.consumer import Consumer
from matador.runtime.deadline import Deadline
from matador.runtime.dedup import in_memory
from matador.runtime.hooks import Hooks
from matador.runtime.worker import DeliveryWorker
from matador.transports.base import (
    JobLimiting,
    JobScheduling,
    JobStoring,
    Pausing,
    Prefetching,
    Subscription,
    Transport,
)
from matador.transports.clock import Clock

log = logging.getLogger("matador.jobs")

Executor: TypeAlias = Literal["async", "thread", "process"]
"""Where handlers run. ``async``: async ones in the event loop, sync ones in threads. ``thread``:
all in threads. ``process``: in child processes, for CPU-bound work."""
EXECUTORS: tuple[Executor, ...] = get_args(Executor)

_QUIET = 0.05  # seconds without a job after which a queue counts as drained

Handlers: TypeAlias = Callable[..., Any] | Mapping[str, Callable[..., Any]]
"""One handler for all jobs, or handlers by the names of the jobs."""


class Worker(JobService):
    """Runs the jobs of a queue, until it is shut down.

    Args:
        queue: the name of the queue, or the ``Queue`` itself, whose provider it shares.
        handler: a function of the job, or functions by the names of jobs. None: what the ``Queue``
            declares with ``@queue.job``.
        provider: see ``Queue``. Not with a ``Queue``.
        concurrency: how many jobs run at once.
        batch_size: the maximum number of jobs per fetch. None: as many as there are free slots.
        poll_interval: seconds between polls of an empty queue. None: a new job is fetched as soon
            as the provider announces it.
        error_backoff: seconds to wait after an error of the provider.
        executor: where handlers run.
        timeout: the time limit of an attempt in seconds. A handler in a thread cannot be stopped:
            the worker waits for it and logs a warning.
        idempotent: whether a job may run again: after a crash or a timeout (``yes``, the default),
            from the step where it stopped (``resumable``), only after an error it raised
            (``unknown``), or never (``no``). ``@queue.job(idempotent=...)`` overrides it for
            declared jobs.
        retry, timeout, idempotent, deduplication: None: those of the ``Queue``, if there is one.
        retry: the retry policy of jobs that were added with the default ``attempts`` and
            ``backoff``. Its ``max_deliveries`` counts for all jobs. None: the standard policy.
        deduplication: runs jobs with the same key once. None: all are run.
        checkpoints: stores the steps of resumable jobs.
        delivery: ``at-most-once`` removes a job before it runs: it never runs twice, and it is
            lost if its worker dies.
        rate_limit: how many jobs start in how many seconds, over all workers of the queue.
        concurrency_per_key: how many jobs with one ``concurrency_key`` run at once, over all
            workers of the queue. Give all workers the same limits.
        on_unsupported: called for each limit that the provider does not support. None: that of the
            ``Queue``, if there is one.
        hooks: called for each attempt: ``matador.observe.Journal``, or ``Hooks`` of your own. None:
            those of the ``Queue``, if there is one.
        connect_timeout: seconds for which to retry the first connection.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> worker = Worker("emails", handle, provider="redis://localhost", concurrency=10)
        >>> worker.on("failed", lambda event: print(event.job_id, event.error))
        >>> worker.run()  # until SIGTERM; in a program of yours: async with worker
    """

    _handles_rest = False  # the jobs of ``memory://`` stay for another worker of this process

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
        idempotent: Idempotency | None = None,
        retry: RetryPolicy | None = None,
        deduplication: Deduplication | None = None,
        checkpoints: CheckpointStore | None = None,
        delivery: DeliveryMode = "at-least-once",
        rate_limit: RateLimit | None = None,
        concurrency_per_key: int | None = None,
        on_unsupported: OnUnsupported | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        connect_timeout: Seconds = 0.0,
    ) -> None:
        name = queue.name if isinstance(queue, Queue) else queue
        check_queue_name(name, "Worker", "queue")
        where = f"[Worker:{name}]"
        if isinstance(queue, Queue):
            if provider is not None:
                raise ConfigurationError(f"{where} give a Queue, or a provider, but not both")
            hooks = queue.hooks if hooks is None else hooks
            on_unsupported = on_unsupported or queue.on_unsupported
        super().__init__(
            where,
            name,
            provider=provider,
            on_unsupported=on_unsupported,
            hooks=hooks,
            connect_timeout=connect_timeout,
        )
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        check_arguments(where, retry=retry, deduplication=deduplication, checkpoints=checkpoints)
        given = ReceivingOptions(retry, timeout, idempotent, deduplication, where=where)
        if isinstance(queue, Queue):
            given = given.otherwise(queue.receiving, where)
        self._retries = JobRetries(given.retry)
        self._events = JobEvents(
            queue=name,
            worker_id=self.id,
            emit=self._emit,
            is_heard=self._is_heard,
            max_attempts=self._retries.max_attempts,
        )
        self._shared = queue if isinstance(queue, Queue) else None
        self._keeps_schedules = handler is None
        self._functions = _functions(queue, handler, where)
        self._concurrency = whole_number(concurrency, f"{where} concurrency", minimum=1)
        self._batch_size = optional_whole_number(batch_size, f"{where} batch_size", minimum=1)
        self._poll_interval = optional_seconds(poll_interval, f"{where} poll_interval")
        self._error_backoff = seconds(error_backoff, f"{where} error_backoff")
        one_of(executor, f"{where} executor", EXECUTORS)
        one_of(delivery, f"{where} delivery", get_args(DeliveryMode))
        self._delivery: DeliveryMode = delivery
        self._deduplication = given.deduplication
        self._checkpoints = NoCheckpointStore() if checkpoints is None else checkpoints
        self._executor: Executor = executor
        self._idempotent: Idempotency = given.idempotent or "yes"
        self._timeout = given.timeout
        self._processes: Processes | None = None
        if executor == "process":
            for route in self._routes().values():
                reference(route.function)
                if route.idempotent == "resumable":
                    raise ConfigurationError(
                        f"{where} executor='process' cannot store the steps of a resumable job"
                    )
            self._processes = Processes()
        self._limits = _limits(rate_limit, concurrency_per_key, where)
        self._subscriptions: list[JobSubscription] = []
        self._scheduling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._own_queue: Queue | None = None
        self._resizing: set[asyncio.Task[None]] = set()
        self._waits = 0.0

    def __repr__(self) -> str:
        return f"Worker({self._name!r}, concurrency={self._concurrency})"

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._name

    @property
    def shared_queue(self) -> Queue | None:
        """The ``Queue`` that it was made with; None: it was made with a name."""
        return self._shared

    @property
    def functions(self) -> Mapping[str | None, JobFunction]:
        """The functions that run jobs, by their names; None: those of every name."""
        return dict(self._functions)

    @property
    def provider(self) -> JobProvider | None:
        """The provider of the jobs; None before the first start."""
        return self._provider if self._connection is not None else None

    # -- life -------------------------------------------------------------------------------------

    async def shutdown(self, timeout: Seconds | None = None, *, disconnect: bool = False) -> None:
        """Stop receiving, wait for running jobs, and release the provider. Idempotent.

        After ``timeout`` seconds (default: 30) running jobs are canceled and given back: they run
        again, and the attempt does not count. ``timeout=0`` does so at once. ``disconnect``:
        disconnect the provider even if the caller gave it and others may use it.

        Example:
            >>> await worker.shutdown(timeout=10)
        """
        if self._stopping is None:
            limit = self._shutdown_options.timeout if timeout is None else timeout
            self._waits = seconds(limit, f"{self._where}: timeout")
        await super().shutdown(timeout, disconnect=disconnect)

    async def close(
        self, timeout: Seconds = 30.0, *, finish_active: bool = True, disconnect: bool = False
    ) -> None:
        """``shutdown`` with more options.

        Args:
            timeout: seconds to wait for jobs that run.
            finish_active: False: do not wait for them at all.
            disconnect: disconnect the provider even if the caller gave it and others may use it.

        Example:
            >>> await worker.close(timeout=10, finish_active=False)
        """
        await self.shutdown(timeout if finish_active else 0.0, disconnect=disconnect)

    def _provided(self) -> JobProvider:
        if self._shared is not None:
            self._provider = self._shared.provider_here()
        return self._provider

    def _rehost(self, transport: Transport, clock: Clock, checkpoints: CheckpointStore) -> None:
        super()._rehost(transport, clock, checkpoints)
        self._checkpoints = checkpoints
        self._deduplication = in_memory(self._deduplication, clock)

    def _routes(self) -> Mapping[str | None, JobRoute]:
        executor = self._executor
        return {
            name: JobRoute(
                handler=getattr(one.function, "__name__", repr(one.function)),
                idempotent=one.idempotent or self._idempotent,
                timeout=self._timeout if one.timeout is None else one.timeout,
                at_most_once=self._delivery == "at-most-once",
                is_async=executor == "process" or (executor == "async" and one.is_async),
                function=one,
            )
            for name, one in self._functions.items()
        }

    def _check(self) -> None:
        super()._check()
        resumable = any(one.idempotent == "resumable" for one in self._routes().values())
        if resumable and not self._checkpoints.persistent:
            log.warning(
                "%s there are resumable jobs but no checkpoint store: every attempt starts from "
                "the beginning; pass checkpoints=SqliteCheckpointStore(...) or another store",
                self._where,
            )

    async def _open(self, transport: Transport) -> None:
        store = self._provider.store
        if self._delivery not in transport.capabilities.delivery_modes:
            raise UnsupportedError(
                f"{self._where} {transport.name} does not support {self._delivery} delivery"
            )
        full_name = await calling(store.open_jobs(self._name), self._name)
        await self._checkpoints.open()
        shared = self._shared
        if self._keeps_schedules and shared is not None:
            await self._keep_schedules(shared, store, full_name)
        routes = self._routes()
        running = RunningJobs() if store.job_capabilities.cancel else None

        def way(worker: DeliveryWorker) -> JobWay:
            return JobWay(
                queue=self._name,
                routes=routes,
                store=store,
                transport=transport.name,
                leases=worker.leases,
                events=self._events,
                retries=self._retries,
                clock=self._clock,
                processes=self._processes,
                running=running,
                sender=self._sender,
            )

        self._subscriptions.clear()
        await self._consume(
            transport,
            way,
            {full_name: self._concurrency},
            max_deliveries=self._retries.max_deliveries,
            checkpoints=self._checkpoints,
            dedup=await self._open_dedup(self._deduplication),
            delays=store.job_capabilities.delays,
            read_ahead=lambda _: False,  # never more than can be processed
            around=self._around,
        )
        if running is not None:
            watching = running.watch(lambda ids: store.find_jobs(full_name, ids))
            self._watching = asyncio.create_task(watching, name="matador-canceled-jobs")
        if isinstance(store, JobScheduling) and not store.fires_schedules:
            scheduler = Scheduler(
                store=store,
                queue=full_name,
                clock=self._clock,
                error_backoff=self._error_backoff,
                failed=self._provider_failed,
                added=lambda jobs: self._tell_sent(jobs, transport.name),
            )
            self._scheduling = asyncio.create_task(scheduler.run(), name="matador-schedules")

    async def _keep_schedules(self, queue: Queue, store: JobStoring, full_name: str) -> None:
        """Store the declared schedules of the queue; remove those that are no longer declared."""
        if isinstance(store, JobScheduling) and store.job_capabilities.schedules:
            await queue.keep_declared(store, full_name, self._provider)
        elif queue.recurs:
            raise queue.unsupported("schedules", "keep recurring jobs")

    async def _sender(
        self, name: str, data: Any = None, *, correlation_id: str | None = None, **options: Any
    ) -> Job[Any]:
        """Implements ``job.send``: adds a job to the same queue."""
        if self._shared is not None:
            queue = self._shared
        else:
            if self._own_queue is None:
                self._own_queue = Queue(self._name, provider=self._provider, hooks=self.hooks)
            queue = self._own_queue
        return await queue.add(name, data, correlation_id=correlation_id, **options)

    def _receiving_stopped(self) -> None:
        if self._scheduling is not None:
            self._scheduling.cancel()
        self._emit("shutting_down", WorkerShuttingDown(queue=self._name))

    def _cut_short(self, running: int) -> None:
        if self._waits and not self._hurry.is_set():
            text = f"{running} jobs were still running after {self._waits:g} s; they are given back"
            event = ShutdownTimeout(
                queue=self._name, timeout=self._waits, active_jobs=running, message=text
            )
            self._emit("shutdown_timeout", event)

    async def _close(self, deadline: Deadline) -> None:
        for task in (self._scheduling, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._scheduling = self._watching = None
        if self._own_queue is not None:
            queue, self._own_queue = self._own_queue, None
            await deadline.do_last(queue.shutdown(), "close the queue that handlers send to")
        if self._processes is not None:
            await self._processes.close()
        await deadline.do_last(self._checkpoints.close(), "close the checkpoint store")
        await super()._close(deadline)

    def _set_hooks(self, hooks: tuple[Hooks, ...]) -> None:
        super()._set_hooks(hooks)
        if self._is_heard():
            self._heard()

    def _heard(self) -> None:
        self._hooks.also_tell(self._events)  # only now, because facts cost time

    # -- for tools ------------------------------------------------------------------------

    @property
    def dead_letters(self) -> FailedJobs:
        """The failed jobs of its queue. See ``Queue.dead_letters``. It must be running."""
        reader, forget = self.reader, self._checkpoints.delete
        provider = self._provided()

        async def ready() -> None:
            self._check_loop()
            _ = self.transport  # otherwise raise that it has not been started

        return FailedJobs(provider, self._name, reader, self._clock, ready, forget)

    @property
    def topology(self) -> Topology:
        """Its queue, and that of the queue's failed jobs."""
        return jobs_topology(self._provided(), self._name)

    @property
    def reader(self) -> JobReader:
        """Reads the stored jobs of its queue."""
        return JobReader() if self._shared is None else self._shared.reader

    # -- while it runs ----------------------------------------------------------------------------

    @property
    def _consumes(self) -> bool:
        return True

    @property
    def _consumers(self) -> Sequence[Consumer]:
        return [consumer for worker in self._workers for consumer in worker.consumers]

    @property
    def active_jobs(self) -> int:
        """How many jobs it is running."""
        return sum(consumer.in_progress for consumer in self._consumers)

    @property
    def concurrency(self) -> int:
        """How many jobs run at once. Can be set while it runs; running jobs are not disturbed."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._concurrency = whole_number(concurrency, f"{self._where} concurrency", minimum=1)
        for consumer in self._consumers:
            task = asyncio.get_running_loop().create_task(consumer.resize(concurrency))
            self._resizing.add(task)
            task.add_done_callback(self._resized)

    def _resized(self, task: asyncio.Task[None]) -> None:
        self._resizing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._provider_failed(error)

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
        if self._workers and self._subscriptions:
            supported = self._supported_limits()
            for subscription in self._subscriptions:
                subscription.set_limits(supported)

    async def pause(self) -> None:
        """Receive no jobs until ``resume``. Running jobs continue. Other workers are not affected.

        Example:
            >>> await worker.pause()
        """
        await super().pause()
        self._emit("paused", QueuePaused(queue=self._name))

    async def resume(self) -> None:
        """Receive jobs again.

        Example:
            >>> await worker.resume()
        """
        await super().resume()
        self._emit("resumed", QueueResumed(queue=self._name))

    # -- inside -----------------------------------------------------------------------------------

    def _settlement_failed(self, receipt: Receipt, error: Exception) -> None:
        super()._settlement_failed(receipt, error)
        self._provider_failed(error)

    def _emit(self, event: EventName, value: Any) -> None:
        super()._emit(event, value)
        if event in ("error", "drained") and self._shared is not None:
            self._shared.tell(event, value)

    def _around(self, inner: Subscription) -> Subscription:
        subscription = JobSubscription(
            inner=inner,
            batch_size=self._batch_size,
            poll_interval=self._poll_interval,
            error_backoff=self._error_backoff,
            failed=self._provider_failed,
            drained=lambda: self._emit("drained", QueueDrained(queue=self._name)),
        )
        others = [one for one in self._subscriptions if one.active]
        self._subscriptions = [*others, subscription]
        if self._limits != NO_LIMITS:
            subscription.set_limits(self._supported_limits())
        return subscription

    def _supported_limits(self) -> JobLimits:
        """The limits that the provider supports. The others are left out with a warning."""
        can, rate, per_key = self._provider.capabilities, self._limits.rate, self._limits.per_key
        report, provider = self._report_unsupported, self._provider.transport.name
        if rate is not None and not can.rate_limit:
            report("rate_limit", rate, provider)
            rate = None
        if per_key is not None and not can.concurrency_per_key:
            report("concurrency_per_key", per_key, provider)
            per_key = None
        return JobLimits(rate, per_key)


@dataclass(kw_only=True, eq=False)
class JobSubscription:
    """A subscription with the features of a job worker: batches, intervals, errors, ``drained``."""

    inner: Subscription
    batch_size: int | None
    poll_interval: float | None
    error_backoff: float
    failed: Callable[[Exception], None]
    drained: Callable[[], None]
    _received: bool = False
    _quiet: asyncio.TimerHandle | None = None

    def set_limits(self, limits: JobLimits) -> None:
        """Providers that declare no limits are given none."""
        if isinstance(self.inner, JobLimiting):
            self.inner.set_limits(limits)

    @property
    def queue(self) -> str:
        return self.inner.queue

    @property
    def active(self) -> bool:
        return self.inner.active

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Reports errors to listeners and backs off."""
        if self.batch_size is not None:
            limit = min(limit, self.batch_size)
        while True:
            self._watch()
            look = asyncio.timeout(None if self.poll_interval is None else _QUIET)
            try:
                async with look:
                    found = await self.inner.receive(limit)
            except Exception as error:  # noqa: BLE001 - reported and retried
                if look.expired():
                    await asyncio.sleep(self.poll_interval or 0)
                    continue
                if not self.inner.active:
                    return ()
                self.failed(error)
                log.warning(
                    "could not receive jobs of %s, trying again in %g s: %s",
                    self.queue,
                    self.error_backoff,
                    error,
                )
                await asyncio.sleep(self.error_backoff)
                continue
            finally:
                if self._quiet is not None:
                    self._quiet.cancel()
            self._received = self._received or bool(found)
            return found

    def _watch(self) -> None:
        self._quiet = asyncio.get_running_loop().call_later(_QUIET, self._is_quiet)

    def _is_quiet(self) -> None:
        assert self._quiet is not None
        late = asyncio.get_running_loop().time() - self._quiet.when()
        limited = isinstance(self.inner, JobLimiting) and self.inner.limited
        if self._received and (limited or late > _QUIET):
            self._watch()  # there are jobs, but it is not their turn; or the loop was busy
        elif self._received:
            self._received = False
            self.drained()

    async def close(self) -> None:
        await self.inner.close()

    async def pause(self) -> None:
        if isinstance(self.inner, Pausing):
            await self.inner.pause()

    async def set_prefetch(self, prefetch: int) -> None:
        if isinstance(self.inner, Prefetching):
            await self.inner.set_prefetch(prefetch)


def _limits(rate: RateLimit | None, per_key: int | None, where: str) -> JobLimits:
    if rate is not None and not isinstance(rate, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise ConfigurationError(
            f"{where} rate_limit must be RateLimit(max, per=seconds), got {rate!r}"
        )
    optional_whole_number(per_key, f"{where} concurrency_per_key", minimum=1)
    return JobLimits(rate, per_key)


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
            name: handler_function(one, f"{where} handler of {name!r}")
            for name, one in by_name.items()
        }
    return {None: handler_function(handler, f"{where} handler")}
