"""Jobs, as transports store them: headers, records, counts, and what a provider can do.

A job is a message of its queue. Its body is ``{"_jobData": …, "_metadata": …}`` and its headers are
named ``job.…``. A transport that stores more than the message (results, states) implements
``matador.transports.base.JobStoring``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import msgspec

from matador.errors import ConfigurationError
from matador.model.options import LONGEST, Seconds, optional_seconds, whole_number

JobStatus: TypeAlias = Literal["waiting", "delayed", "active", "completed", "failed"]
"""The five states of a job. Any other state of a provider counts as ``waiting``."""

JOB_STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)

ID = "job.id"
NAME = "job.name"
MAX_ATTEMPTS = "job.maxAttempts"
CREATED_AT = "job.createdAt"
"""Milliseconds since the epoch."""

DUE_AT = "job.dueAt"
"""Milliseconds since the epoch, in jobs that were added with a delay."""

RETRY_AT = "job.retryAt"
"""Milliseconds since the epoch: when the next attempt is due. Absent: unknown."""

ATTEMPTS = "job.attempts"
"""How many attempts have ended so far. Absent: none."""

BACKOFF = "job.backoff"
"""``fixed:1000`` or ``exponential:1000``, in milliseconds, with ``:300000`` for the maximum delay.
"""

ERROR = "job.error"
"""The message of the last error."""

FAILED_AT = "job.failedAt"
"""Milliseconds since the epoch, in failed jobs."""

PROVIDER_OPTIONS = "job.providerOptions"
"""Options that only the provider understands: a JSON object."""

KEEP_COMPLETED = "job.keepCompleted"
KEEP_FAILED = "job.keepFailed"
"""The value of ``Keep.text``. Absent: completed jobs are kept as ``KEEP_AN_HOUR`` says, failed ones
until they are removed."""

CORRELATION_ID = "job.correlationId"
"""The sender's data to trace the job."""

PARENT = "job.parent"
"""The id of the job in the same queue that waits for this one."""

CHILDREN = "job.children"
"""How many jobs this one waits for."""

CONCURRENCY_KEY = "job.concurrencyKey"
"""The key for which workers may limit how many jobs run at once."""

UNIQUE = "job.unique"
"""The key that only one job may hold at a time."""

UNIQUE_FOR = "job.uniqueFor"
"""Milliseconds for which the job holds the key. Absent: until the job is finished."""


@dataclass(frozen=True, slots=True, init=False)
class Keep:
    """How long finished jobs are kept: by age, by count, or both.

    ``Keep()`` keeps them until they are removed; ``Keep(count=0)`` keeps none.

    Example:
        >>> Keep(age=3600, count=1000).text
        'age=3600,count=1000'
    """

    age: float | None
    count: int | None

    def __init__(self, *, age: Seconds | None = None, count: int | None = None) -> None:
        object.__setattr__(self, "age", optional_seconds(age, "Keep: age"))
        if count is not None:
            whole_number(count, "Keep: count", minimum=0)
        object.__setattr__(self, "count", count)

    @property
    def nothing(self) -> bool:
        """Finished jobs are removed at once."""
        return self.count == 0

    @property
    def text(self) -> str:
        """The value for a header."""
        age = [] if self.age is None else [f"age={self.age:g}"]
        return ",".join([*age, *([] if self.count is None else [f"count={self.count}"])]) or "all"

    @classmethod
    def read(cls, text: object, default: Keep) -> Keep:
        """The value in a header; ``default`` if there is none, or it cannot be read."""
        if not isinstance(text, str):
            return default
        try:
            pairs = [] if text == "all" else [part.split("=") for part in text.split(",")]
            found = {name: float(value) for name, value in pairs}
            count = found.pop("count", None)
            age = found.pop("age", None)
            age = age if age is None else min(age, LONGEST)
            return default if found else cls(age=age, count=None if count is None else int(count))
        except (ValueError, OverflowError):
            return default

    @classmethod
    def of(cls, remove: bool | int | Keep, what: str) -> Keep:
        """Convert a value of ``remove_on_complete`` or ``remove_on_fail``.

        Raises:
            ConfigurationError: none of ``True``, ``False``, a number of jobs to keep, a ``Keep``.
        """
        if isinstance(remove, Keep):
            return remove
        if isinstance(remove, bool):
            return KEEP_NONE if remove else KEEP_ALL
        if isinstance(remove, int):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            return cls(count=remove)
        raise ConfigurationError(
            f"{what} must be True, False, the number of jobs to keep, or Keep(…), got {remove!r}"
        )


KEEP_ALL = Keep()
KEEP_NONE = Keep(count=0)
KEEP_AN_HOUR = Keep(age=3600, count=10_000)
"""How long completed jobs are kept by default. The count limits the storage of a busy queue."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its provider stores it. Data, metadata, progress and result are JSON.

    Times are seconds since the epoch. ``error`` is that of the last attempt that failed.
    """

    id: str
    name: str
    queue: str
    status: JobStatus
    data: bytes = b"null"
    metadata: bytes | None = None
    attempts: int = 0
    max_attempts: int = 1
    created_at: float = 0.0
    processed_at: float | None = None
    finished_at: float | None = None
    due_at: float | None = None
    error: str | None = None
    priority: int | None = None
    progress: bytes | None = None
    result: bytes | None = None


Missed: TypeAlias = Literal["one", "all", "skip"]
"""What to do about occurrences while no worker ran: one job for all of them, one each, or none."""


PAUSED = 32_503_680_000.0
"""The next time of a paused schedule: the year 3000. Every provider can store it, and a worker in
another language does not fire it."""


class JobSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job, as its provider stores it.

    Attributes:
        key: unique in its queue.
        name: of the jobs it adds.
        cron: a cron expression; None: ``every`` says when.
        every: seconds between two jobs; None: ``cron`` says when.
        timezone: the time zone of the cron expression.
        missed: what to do about occurrences while no worker ran.
        body: of the jobs it adds.
        headers: of the jobs it adds, without their ids and times.
        next_at: when the next job is due, in seconds since the epoch.
    """

    key: str
    name: str
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    missed: Missed = "one"
    body: bytes = b'{"_jobData":null}'
    headers: Mapping[str, str | int] = {}
    next_at: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether it adds no jobs until it is resumed."""
        return self.next_at >= PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """The number of jobs in each state; ``unknown`` names the numbers that the provider cannot
    tell.

    ``completed`` and ``failed`` count the jobs that are kept. ``all_completed`` and ``all_failed``
    count all jobs since the queue was created, and ``workers`` the active consumers; None: the
    provider does not know.
    """

    waiting: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    paused: bool = False
    all_completed: int | None = None
    all_failed: int | None = None
    workers: int | None = None
    unknown: frozenset[JobStatus] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCapabilities:
    """The features of a job provider. Unsupported features cause a warning and are never emulated.

    Attributes:
        delays: a job can wait until its time.
        priorities: a higher number comes first.
        retries: a failed job is tried again.
        backoff: it waits before that, as long as the job says.
        dead_letters: failed jobs are kept and can be listed.
        find: a job can be found by its id.
        unique_ids: adding an id twice is refused.
        list: jobs can be listed by their state.
        counts: the number of jobs in each state is known.
        results: the result of a handler is kept.
        progress: other processes can read what ``update_progress`` stores.
        provider_options: it has options of its own, which ``provider_options`` gives.
        keep: how long finished jobs are kept can be chosen.
        retry: a failed job can be sent again by its id.
        remove: a job can be removed by its id.
        cancel: a job can be canceled by its id, also while it runs.
        pause: the queue can be paused for all workers.
        delete: the queue can be deleted with all its jobs.
        unique: a unique key prevents jobs from being added twice within a time window.
        schedules: recurring jobs.
        flows: chains and groups.
        rate_limit: the number of jobs per period can be limited, over all workers.
        concurrency_per_key: the number of active jobs per key can be limited, over all workers.
        long_polling: a new job wakes a worker without polling.
        max_job_size: bytes, None: no limit of its own.
        max_batch: how many jobs are fetched at once at most, None: any number.
        max_delay: seconds, None: any.
    """

    delays: bool = False
    priorities: bool = False
    retries: bool = True
    backoff: bool = False
    dead_letters: bool = True
    find: bool = False
    unique_ids: bool = False
    list: bool = False
    counts: bool = False
    results: bool = False
    progress: bool = False
    provider_options: bool = False
    keep: bool = False
    retry: bool = False
    remove: bool = False
    cancel: bool = False
    pause: bool = False
    delete: bool = False
    unique: bool = False
    schedules: bool = False
    flows: bool = False
    rate_limit: bool = False
    concurrency_per_key: bool = False
    long_polling: bool = True
    max_job_size: int | None = None
    max_batch: int | None = None
    max_delay: float | None = None
