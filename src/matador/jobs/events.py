"""What happens to jobs, as values, and who is told of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.model.job import JobStatus
from matador.model.options import suggestion
from matador.model.text import loggable

log = logging.getLogger("matador.jobs")

EventName: TypeAlias = Literal[
    "active",
    "completed",
    "failed",
    "retrying",
    "progress",
    "shutting_down",
    "shutdown_timeout",
    "error",
    "drained",
    "paused",
    "resumed",
]
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)

Listener: TypeAlias = Callable[[Any], object]
"""Gets the event. Sync, or async: then it runs in a task of its own."""

_MOST_UNREAD = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """What all events about a job have."""

    job_id: str
    name: str
    queue: str
    attempts: int
    status: JobStatus
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobActive(JobEvent):
    """An attempt has begun."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(JobEvent):
    """A job has completed, and that is stored. ``duration`` in seconds."""

    duration: float
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """An attempt failed, and what becomes of the job is stored.

    ``will_retry`` is false in the last attempt and for a permanent error; ``retry_delay`` is in
    seconds.
    """

    error: BaseException
    error_type: str
    duration: float
    will_retry: bool
    permanent: bool = False
    retry_delay: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetrying(JobEvent):
    """A job will be tried again. Follows ``failed``."""

    max_attempts: int
    retry_delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress(JobEvent):
    """A handler said how far it has come."""

    progress: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShuttingDown:
    """A worker is closing: it receives nothing more, and waits for the jobs that run."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownTimeout:
    """Jobs were still running when the time to close was over. They are given back."""

    queue: str
    timeout: float
    active_jobs: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueErrored:
    """Something failed that is not a job: receiving, settling, a listener."""

    queue: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDrained:
    """No job is left to be received, for the moment."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePaused:
    """No job is received until ``resumed``."""

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueResumed:
    """Jobs are received again."""

    queue: str


class Emitter:
    """Tells listeners what happens. One that raises is logged, and stops nothing."""

    def __init__(self, where: str, queue: str = "") -> None:
        self._where = where
        self._queue = queue
        self._listeners: dict[EventName, list[tuple[Listener, bool, bool]]] = {}
        self.streams: list[EventStream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def heard(self) -> bool:
        """Is anybody listening to anything?"""
        return bool(self._listeners or self.streams)

    def remove(self, event: EventName, listener: Listener) -> None:
        """See ``Observable.off``."""
        kept = [one for one in self._listeners.get(event, []) if one[0] != listener]
        if kept:
            self._listeners[event] = kept
        else:
            self._listeners.pop(event, None)

    def add(
        self, event: EventName, listener: Listener, *, once: bool = False, safe: bool = False
    ) -> None:
        """See ``Observable.on``."""
        if event not in EVENT_NAMES:
            raise ConfigurationError(
                f"{self._where} there is no event {event!r} (there are: {', '.join(EVENT_NAMES)})"
                f"{suggestion(str(event), EVENT_NAMES)}"
            )
        if not callable(listener):
            raise ConfigurationError(f"{self._where} a listener must be callable, got {listener!r}")
        self._listeners.setdefault(event, []).append((listener, once, safe))

    def emit(self, event: EventName, value: Any) -> None:
        """Tell everybody. Returns at once, and never raises."""
        for stream in self.streams:
            stream.put(value)
        for listener, once, safe in list(self._listeners.get(event, ())):
            if once:
                self._listeners[event].remove((listener, once, safe))
                if not self._listeners[event]:
                    del self._listeners[event]
            try:
                result = listener(value)
                if inspect.iscoroutine(result):
                    self._finish(event, result, safe)
            except Exception as error:  # noqa: BLE001 - reported
                self._failed(event, error, safe)

    def _finish(self, event: EventName, call: Coroutine[Any, Any, object], safe: bool) -> None:
        async def finish() -> None:
            try:
                await call
            except Exception as error:  # noqa: BLE001 - reported
                self._failed(event, error, safe)

        task = asyncio.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _failed(self, event: EventName, error: Exception, safe: bool) -> None:
        log.error(
            "%s a listener of %r raised an error", self._where, event, exc_info=loggable(error)
        )
        if safe and event != "error":
            self.emit("error", QueueErrored(queue=self._queue, error=error))

    async def close(self) -> None:
        """Wait for async listeners, and end the streams."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in list(self.streams):
            stream.end()


class Observable:
    """Something with events: ``on``, ``once``, ``off``, and ``events()``."""

    def __init__(self, where: str, queue: str) -> None:
        self._emitter = Emitter(where, queue)

    def on(self, event: EventName, listener: Listener) -> None:
        """Call ``listener`` with each event of that name. What it raises is logged.

        Raises:
            ConfigurationError: no such event, or nothing that can be called.
        """
        self._emitter.add(event, listener)

    def once(self, event: EventName, listener: Listener) -> None:
        """``on``, for the next event of that name alone."""
        self._emitter.add(event, listener, once=True)

    def on_safe(self, event: EventName, listener: Listener) -> None:
        """``on``, but what the listener raises is an ``error`` event, too."""
        self._emitter.add(event, listener, safe=True)

    def once_safe(self, event: EventName, listener: Listener) -> None:
        """``once``, but what the listener raises is an ``error`` event, too."""
        self._emitter.add(event, listener, once=True, safe=True)

    def off(self, event: EventName, listener: Listener) -> None:
        """Call ``listener`` no more. One that was not added is ignored."""
        self._emitter.remove(event, listener)

    def events(self) -> EventStream:
        """All events from now on: ``async for event in worker.events()``."""
        return EventStream(self._emitter.streams)


class EventStream:
    """``async for event in worker.events()``. A reader that is too slow misses the oldest."""

    def __init__(self, streams: list[EventStream]) -> None:
        self._streams = streams
        self._unread: deque[Any] = deque(maxlen=_MOST_UNREAD)
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        streams.append(self)

    def put(self, value: Any) -> None:
        """Add an event."""
        self._unread.append(value)
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        if self in self._streams:
            self._streams.remove(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while True:
                while self._unread:
                    yield self._unread.popleft()
                if self._ended:
                    return
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        finally:
            self.end()
