"""The public view of a job: its stored state and, while it runs, the operations of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import msgspec

from matador.codec.data import data_decoder, encode_data
from matador.errors import InvalidJobError
from matador.model.job import JobRecord, JobStatus
from matador.model.message import Delivery, Receipt
from matador.runtime.context import Context
from matador.runtime.facts import EPOCH, moment, plain_data

T = TypeVar("T")
S = TypeVar("S")

_NO_METADATA: Mapping[str, Any] = {}


class Job(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A snapshot of a stored job. It does not update itself.

    Attributes:
        id: unique in its queue.
        name: selects the handler.
        queue: the name of its queue.
        data: what the handler needs.
        status: its state.
        attempts: how many attempts have ended.
        max_attempts: the maximum number of attempts.
        created_at: when it was added.
        processed_at: when its last attempt began.
        completed_at: when it completed.
        failed_at: when it failed permanently.
        scheduled_for: when it will be due, if it is delayed.
        error: the message of the last error.
        priority: higher first.
        metadata: the sender's data for debugging.
        progress: the last progress reported by the handler.
        result: the result of the handler.
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


@dataclass(slots=True, eq=False)
class JobControl:
    """The link of an active job to its worker, from its event loop or from a thread."""

    report: Callable[[bytes, Any], Coroutine[Any, Any, None]]
    loop: asyncio.AbstractEventLoop
    context: Context | Callable[[], Context] | None = None
    lost: bool = False

    def lose(self) -> None:
        """The lease of the job is lost."""
        self.lost = True

    def send(self, encoded: bytes, progress: Any) -> Awaitable[None]:
        """Report progress. In a thread, it is reported when this returns."""
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
    """A running job: its state, and the operations of a ``Context``.

    Attributes:
        provider_metadata: the provider's data about this delivery.
        control: how the job reaches its worker.
    """

    provider_metadata: Mapping[str, Any] = {}
    control: JobControl | None = None

    def __repr__(self) -> str:
        return f"ActiveJob(id={self.id!r}, name={self.name!r}, queue={self.queue!r})"

    def update_progress(self, progress: Any) -> Awaitable[None]:
        """Report progress: a number, or anything that can be encoded as JSON.

        If the provider stores progress, other processes read it as ``Job.progress``. Listeners of
        the worker's ``progress`` event are always notified. An async handler awaits the call. In a
        sync handler, which runs in a thread, the call blocks.

        Raises:
            InvalidJobError: it cannot be written as JSON.

        Example:
            >>> await job.update_progress(50)
        """
        encoded = encode_json(progress, f"job {self.id!r}: progress")
        return _Done() if self.control is None else self.control.send(encoded, progress)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.attempts + 1

    @property
    def context(self) -> Context:
        """The message of the job, and its resumable steps. Created on first use."""
        control = self.control
        found = None if control is None else control.context
        if callable(found):
            found = found()
            assert control is not None
            control.context = found
        if found is not None:
            return found
        nothing = Delivery(b"", {}, Receipt(self.queue, None))  # no worker runs it: in a unit test
        return Context(None, nothing, id=self.id, attempt=self.attempt, metadata=self.metadata)

    @property
    def headers(self) -> Mapping[str, str | int]:
        """The headers of the job's message."""
        return self.context.headers

    @property
    def correlation_id(self) -> str | None:
        """The sender's id to trace related messages."""
        return self.context.correlation_id

    @property
    def deadline(self) -> datetime | None:
        """When the sender stops waiting; None: no deadline."""
        return self.context.deadline

    @property
    def lease_lost(self) -> bool:
        """Whether another worker has the job now. If so, stop: the outcome will be refused."""
        control = self.control
        if control is None:
            return False
        context = control.context
        return control.lost or (isinstance(context, Context) and context.lease_lost)

    def io(self, key: str, step: Callable[[], Awaitable[S] | S]) -> Awaitable[S]:
        """Run a side effect once; later attempts return its stored result. See ``Context.io``.

        Example:
            >>> payment = await job.io("charge", lambda: gateway.charge(job.data.order_id))
        """
        return self.context.io(key, step)

    def all(self, steps: Sequence[tuple[str, Callable[[], Any]]]) -> Awaitable[list[Any]]:
        """Run several steps concurrently and return their results. See ``Context.all``.

        Example:
            >>> first, second = await job.all([("ada", notify_ada), ("alan", notify_alan)])
        """
        return self.context.all(steps)

    def send(self, name: str, data: Any = None, **options: Any) -> Any:
        """Add another job to the same queue, with the correlation id of this one.

        Takes the arguments of ``Queue.add``. An async handler awaits it; in a sync handler this
        blocks, and returns the new job itself.

        Example:
            >>> await job.send("receipt", {"order_id": job.data.order_id}, delay=60)
        """
        return self.context.send(name, data, **options)


class _Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


def job_from(record: JobRecord) -> Job[Any]:
    """A job from its provider's record. Data that are not JSON become text."""
    finished = moment(record.finished_at)
    return Job(
        id=record.id,
        name=record.name,
        queue=record.queue,
        data=plain_data(record.data),
        status=record.status,
        attempts=record.attempts,
        max_attempts=record.max_attempts,
        created_at=moment(record.created_at) or EPOCH,
        processed_at=moment(record.processed_at),
        completed_at=finished if record.status == "completed" else None,
        failed_at=finished if record.status == "failed" else None,
        scheduled_for=moment(record.due_at),
        error=record.error,
        priority=record.priority,
        metadata=metadata_from(record.metadata),
        progress=plain_data(record.progress),
        result=plain_data(record.result),
    )


def metadata_from(stored: bytes | None) -> Mapping[str, Any]:
    """The metadata of a job; empty if there are none, or they are not a JSON object."""
    found = _NO_METADATA if stored is None else plain_data(stored)
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
    try:
        return encode_json(dict(metadata), f"{where}: metadata")
    except InvalidJobError:
        for name, value in metadata.items():
            encode_json(value, f"{where}: metadata[{name!r}]")  # names the one that cannot
        raise


def encode_json(value: Any, where: str) -> bytes:
    """A value as JSON.

    Raises:
        InvalidJobError: it cannot be encoded, or would be decoded differently.
    """
    return encode_data(value, where, InvalidJobError)


def decoder_for(kind: Any, where: str) -> Callable[[bytes], Any]:
    """A function that reads JSON into a type.

    Raises:
        InvalidJobError: the type cannot be decoded.
    """
    return data_decoder(kind, where, InvalidJobError)
