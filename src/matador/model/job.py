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
"""The five states of a job. What a provider calls otherwise is ``waiting``."""

JOB_STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)

ID = "job.id"
NAME = "job.name"
MAX_ATTEMPTS = "job.maxAttempts"
CREATED_AT = "job.createdAt"
"""Milliseconds since the epoch."""

DUE_AT = "job.dueAt"
"""Milliseconds since the epoch, in jobs that were added with a delay."""

RETRY_AT = "job.retryAt"
"""Milliseconds since the epoch: when the next attempt is due. Absent: nobody knows."""

ATTEMPTS = "job.attempts"
"""How many attempts have ended so far. Absent: none."""

BACKOFF = "job.backoff"
"""``fixed:1000`` or ``exponential:1000``, in milliseconds, with ``:300000`` for a longest wait."""

ERROR = "job.error"
"""The message of the last error."""

FAILED_AT = "job.failedAt"
"""Milliseconds since the epoch, in failed jobs."""

PROVIDER_OPTIONS = "job.providerOptions"
"""Options that only the provider understands: a JSON object."""

KEEP_COMPLETED = "job.keepCompleted"
KEEP_FAILED = "job.keepFailed"
"""What ``Keep.text`` says. Absent: completed jobs are kept as ``KEEP_AN_HOUR`` says, failed ones
until they are removed."""

CORRELATION_ID = "job.correlationId"
"""What the sender gave to trace the job."""

PARENT = "job.parent"
"""The id of the job in the same queue that waits for this one."""

CHILDREN = "job.children"
"""How many jobs this one waits for."""

CONCURRENCY_KEY = "job.concurrencyKey"
"""The key of which only so many jobs run at once, if a worker says so."""

UNIQUE = "job.unique"
"""The key that no two jobs may have at a time."""

UNIQUE_FOR = "job.uniqueFor"
"""Milliseconds for which the key is taken. Absent: until the job is finished."""


@dataclass(frozen=True, slots=True, init=False)
class Keep:
    """How long finished jobs are kept: for some time, so many of them, or both.

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
        """As it travels in a header."""
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
        """What ``remove_on_complete`` and ``remove_on_fail`` mean by their value.

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
"""How long completed jobs are kept unless told otherwise. The count bounds a busy queue."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its provider has it. Data, metadata, progress and result are JSON.

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
"""What becomes of the times at which no worker ran: one job for all of them, one each, or none."""


PAUSED = 32_503_680_000.0
"""The next time of a schedule that is paused: the year 3000. So every provider can keep it, and a
worker in another language leaves it alone, too."""


class JobSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job, as its provider has it.

    Attributes:
        key: unique in its queue.
        name: of the jobs it adds.
        cron: a cron expression; None: ``every`` says when.
        every: seconds between two jobs; None: ``cron`` says when.
        timezone: in which the cron expression is meant.
        missed: what becomes of the times at which nobody was there.
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
        """Does it add no jobs until it is resumed?"""
        return self.next_at >= PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """How many jobs of a queue are in which state; ``unknown`` names what the provider hides.

    ``completed`` and ``failed`` count the jobs that are kept. ``all_completed`` and ``all_failed``
    count all there ever were, and ``workers`` who is consuming; None: the provider does not know.
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
    """What a provider of jobs can do. What it cannot do is warned about and never faked.

    Attributes:
        delays: a job can wait until its time.
        priorities: a higher number comes first.
        retries: a failed job is tried again.
        backoff: it waits before that, as long as the job says.
        dead_letters: failed jobs are kept and can be listed.
        find: a job can be found by its id.
        unique_ids: adding an id twice is refused.
        list: jobs can be listed by their state.
        counts: it is known how many jobs are in which state.
        results: what a handler returned is kept.
        progress: ``update_progress`` reaches whoever looks.
        provider_options: it has options of its own, which ``provider_options`` gives.
        keep: how long finished jobs are kept can be chosen.
        retry: a failed job can be sent again by its id.
        remove: a job can be removed by its id.
        cancel: a job can be canceled by its id, also while it runs.
        pause: the queue can be paused for all workers.
        delete: the queue can be deleted with all its jobs.
        unique: a job can be kept from being added twice in a window.
        schedules: recurring jobs.
        flows: chains and groups.
        rate_limit: so many jobs in so much time, over all workers.
        concurrency_per_key: so many jobs of one key at once, over all workers.
        long_polling: a worker is woken by a new job, without polling.
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
