"""The events of jobs, and the hook that passes them to the listeners of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from matador.errors import DontRetry
from matador.jobs.wire import JobWork
from matador.model.job import JobStatus
from matador.model.message import Headers
from matador.policy.retry import RetryLater
from matador.runtime.facts import Attempt
from matador.runtime.hooks import Hooks

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """The fields of all events about a job."""

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
    """A job has completed, and its completion is stored. ``duration`` in seconds."""

    duration: float
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """An attempt failed, and the outcome for the job is stored.

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
    """A job will be retried. Follows ``failed``."""

    max_attempts: int
    retry_delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress(JobEvent):
    """A handler reported progress."""

    progress: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """The fields of all events about a worker or a queue."""

    queue: str


class WorkerShuttingDown(QueueEvent):
    """A worker is closing: it stops receiving and waits for running jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownTimeout(QueueEvent):
    """Jobs were still running when the shutdown timed out. They are given back."""

    timeout: float
    active_jobs: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueErrored(QueueEvent):
    """An operation other than a job failed: receiving, settling, a listener."""

    error: BaseException


class QueueDrained(QueueEvent):
    """No job is waiting now."""


class QueuePaused(QueueEvent):
    """No jobs are received until ``resumed``."""


class QueueResumed(QueueEvent):
    """Jobs are received again."""


@dataclass(kw_only=True, eq=False)
class JobEvents(Hooks):
    """Notifies the listeners of a worker about its jobs.

    Attributes:
        queue: the name of the queue.
        worker_id: the id of the worker.
        emit: passes an event to all listeners.
        is_heard: whether there are any.
        max_attempts: the maximum number of attempts of a job with these headers.
    """

    queue: str
    worker_id: str
    emit: Callable[[EventName, Any], None]
    is_heard: Callable[[], bool]
    max_attempts: Callable[[Headers], int]

    def active(self, work: JobWork) -> None:
        """An attempt begins."""
        if self.is_heard():
            self.emit("active", JobActive(**self._running(work), worker_id=self.worker_id))

    def progress(self, work: JobWork, progress: Any) -> None:
        """A handler reports progress."""
        if self.is_heard():
            self.emit("progress", JobProgress(**self._running(work), progress=progress))

    def _running(self, work: JobWork) -> dict[str, Any]:
        return self._about(work.id, work.name, work.attempt - 1, "active", work.metadata)

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        """Attempts are settled."""
        if self.is_heard():
            for attempt in batch:
                self._ended(attempt)

    def _ended(self, attempt: Attempt) -> None:
        decision, error = attempt.decision, attempt.error
        delay = decision.delay if isinstance(decision, RetryLater) else None
        status = "failed" if delay is None else "delayed" if delay else "waiting"
        about = self._about(
            attempt.id,
            attempt.name,
            attempt.attempt if attempt.ran else attempt.attempt - 1,
            "completed" if error is None else status,
            attempt.message.metadata or {},
        )
        if error is None:
            completed = JobCompleted(**about, duration=attempt.duration, result=attempt.result)
            self.emit("completed", completed)
            return
        failed = JobFailed(
            **about,
            error=error,
            error_type=type(error).__name__,
            duration=attempt.duration,
            will_retry=delay is not None,
            permanent=not attempt.ran or isinstance(error, DontRetry),
            retry_delay=delay,
        )
        self.emit("failed", failed)
        if delay is not None:
            most = self.max_attempts(attempt.delivery.headers)
            self.emit("retrying", JobRetrying(**about, max_attempts=most, retry_delay=delay))

    def _about(
        self, id: str, name: str, attempts: int, status: JobStatus, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "job_id": id,
            "name": name,
            "queue": self.queue,
            "attempts": attempts,
            "status": status,
            "metadata": metadata,
        }
