"""A job as users see it: what is stored of it, and, while it runs, what its handler may do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

import msgspec

from matador.errors import InvalidJobError
from matador.jobs.data import encode_json
from matador.model.job import JobRecord, JobStatus

T = TypeVar("T")

_NO_METADATA: Mapping[str, Any] = {}
_EPOCH = datetime.fromtimestamp(0, UTC)


class Job(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A job, as it was stored when it was looked at. It does not change by itself.

    Attributes:
        id: unique in its queue.
        name: which handler runs it.
        queue: the name of its queue.
        data: what the handler needs.
        status: where it stands.
        attempts: how many attempts have ended.
        max_attempts: after how many it fails.
        created_at: when it was added.
        processed_at: when its last attempt began.
        completed_at: when it completed.
        failed_at: when it failed for good.
        scheduled_for: when it will be due, if it is delayed.
        error: the message of the last error.
        priority: higher first.
        metadata: what was added beside the data, for debugging.
        progress: what the handler said last.
        result: what the handler returned.
    """

    id: str
    name: str
    queue: str
    data: T
    status: JobStatus
    attempts: int = 0
    max_attempts: int = 1
    created_at: datetime
    processed_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    scheduled_for: datetime | None = None
    error: str | None = None
    priority: int | None = None
    metadata: Mapping[str, Any] = {}
    progress: Any = None
    result: Any = None


class JobControl(msgspec.Struct, frozen=True):
    """How an active job reaches its worker: from its event loop, or from a thread."""

    report: Callable[[bytes, Any], Coroutine[Any, Any, None]]
    loop: asyncio.AbstractEventLoop

    def send(self, encoded: bytes, progress: Any) -> Awaitable[None]:
        """Report progress. Without an event loop here, it is done when this returns."""
        call = self.report(encoded, progress)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(call, self.loop).result()
            return _Done()
        if here is self.loop:
            return call
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))


class ActiveJob(Job[T], frozen=True, kw_only=True):
    """A job that is being run.

    Attributes:
        provider_metadata: what the provider calls this delivery.
        control: how the worker is told of progress.
    """

    provider_metadata: Mapping[str, Any] = {}
    control: JobControl | None = None

    def __repr__(self) -> str:
        return f"ActiveJob(id={self.id!r}, name={self.name!r}, queue={self.queue!r})"

    def update_progress(self, progress: Any) -> Awaitable[None]:
        """Say how far it has come: a number, or anything that can be written as JSON.

        Where the provider keeps it, others see it in ``Job.progress``. Listeners of the worker's
        ``progress`` event are told in any case. An async handler awaits it. In a sync handler,
        which runs in a thread, the call itself waits until it is done.

        Raises:
            InvalidJobError: it cannot be written as JSON.
        """
        encoded = encode_json(progress, f"job {self.id!r}: progress")
        return _Done() if self.control is None else self.control.send(encoded, progress)


class _Done:
    """Something to await that is done."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


def job_from(record: JobRecord) -> Job[Any]:
    """A job from what its provider has of it. Data that are not JSON become text."""
    finished = moment(record.finished_at)
    return Job(
        id=record.id,
        name=record.name,
        queue=record.queue,
        data=plain(record.data),
        status=record.status,
        attempts=record.attempts,
        max_attempts=record.max_attempts,
        created_at=moment(record.created_at) or _EPOCH,
        processed_at=moment(record.processed_at),
        completed_at=finished if record.status == "completed" else None,
        failed_at=finished if record.status == "failed" else None,
        scheduled_for=moment(record.due_at),
        error=record.error,
        priority=record.priority,
        metadata=metadata_from(record.metadata),
        progress=None if record.progress is None else plain(record.progress),
        result=None if record.result is None else plain(record.result),
    )


def moment(seconds: float | None) -> datetime | None:
    """A time, if there is one."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None  # somebody else wrote a time that is none


def plain(data: bytes) -> Any:
    """JSON as plain data; other bytes as text."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return data.decode(errors="replace")


def metadata_from(stored: bytes | None) -> Mapping[str, Any]:
    """The metadata of a job; empty if there are none, or they are not a JSON object."""
    found = _NO_METADATA if stored is None else plain(stored)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else _NO_METADATA


def metadata_json(metadata: Mapping[str, Any] | None, where: str) -> bytes | None:
    """Metadata as they are stored.

    Raises:
        InvalidJobError: they cannot be written as JSON.
    """
    if not metadata:
        return None
    if not all(isinstance(name, str) for name in metadata):  # pyright: ignore[reportUnnecessaryIsInstance] - users
        raise InvalidJobError(f"{where}: the keys of metadata must be strings")
    return encode_json(dict(metadata), f"{where}: metadata")
