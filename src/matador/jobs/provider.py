"""Where jobs are kept: any transport, given by itself, by its URL, or made for each queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from matador.errors import (
    ConfigurationError,
    JobError,
    JobProviderError,
    MatadorError,
    NotConnectedError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)
from matador.errors import InvalidJobError as InvalidJob
from matador.jobs.message_jobs import MessageJobs
from matador.model.job import JobCapabilities
from matador.runtime.deadline import GRACE, Deadline
from matador.transports.base import JobStoring, Transport
from matador.transports.memory import MemoryTransport
from matador.transports.urls import transport_from_url

log = logging.getLogger("matador.jobs")

T = TypeVar("T")

ProviderFactory: TypeAlias = Callable[[str], "Transport | str"]
"""Makes the provider of a queue from the queue's name."""

ProviderLike: TypeAlias = "JobProvider | Transport | str | ProviderFactory"
"""What ``provider=`` takes."""

_in_memory: WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryTransport] = WeakKeyDictionary()


class JobProvider:
    """A transport that keeps jobs. Queues and workers may share one.

    Connected when it is first used. A transport that was given belongs to whoever gave it: it is
    disconnected only on request. One that was made from a URL is disconnected with its last user.

    Example:
        >>> provider = JobProvider("redis://localhost")
        >>> emails, texts = Queue("emails", provider=provider), Queue("texts", provider=provider)
    """

    def __init__(self, transport: Transport | str, *, owned: bool | None = None) -> None:
        self._owned = isinstance(transport, str) if owned is None else owned
        self.transport: Transport = _transport(transport)
        self.store: JobStoring = _store(self.transport)
        self._users: set[object] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transport!r})"

    @property
    def capabilities(self) -> JobCapabilities:
        """What it can do with jobs."""
        return self.store.job_capabilities

    async def open(self, queue: str, user: object) -> str:
        """Connect, and make a queue of jobs; its full name. ``user`` needs it until ``close``."""
        self._users.add(user)
        try:
            await self.transport.connect()
            return await calling(self.store.open_jobs(queue), queue)
        except BaseException:
            await self.close(user)
            raise

    async def close(
        self, user: object, *, disconnect: bool = False, deadline: Deadline | None = None
    ) -> None:
        """``user`` needs it no longer. The last one of an own transport disconnects it.

        That takes a few seconds at most, or until ``deadline``.
        """
        self._users.discard(user)
        if disconnect or (self._owned and not self._users):
            self._users.clear()
            deadline = deadline or Deadline(GRACE, f"the provider {self.transport.name!r}")
            await deadline.do_last(self.transport.disconnect(), "disconnect")


def provider_for(given: ProviderLike | None, queue: str, where: str) -> JobProvider:
    """The provider that ``provider=`` means.

    Raises:
        ConfigurationError: nothing that could be one.
    """
    if given is None:
        return JobProvider(_shared_memory(), owned=False)
    if isinstance(given, JobProvider):
        return given
    if isinstance(given, str | Transport):
        return JobProvider(given)
    if callable(given):
        return provider_for(given(queue), queue, where)
    raise ConfigurationError(
        f"{where} provider must be a URL, a transport, a JobProvider, or a function that makes "
        f"one from the name of a queue, got {given!r}"
    )


def _shared_memory() -> MemoryTransport:
    """One for all queues and workers of an event loop, so that they find each other."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return MemoryTransport(name="jobs")  # to see what it can do
    found = _in_memory.get(loop)
    if found is None:
        found = _in_memory[loop] = MemoryTransport(name="jobs")
    return found


def _transport(given: Transport | str) -> Transport:
    if not isinstance(given, str):
        return given
    scheme, separator, rest = given.partition("://")
    if separator and scheme.lower() in ("redis", "rediss"):  # on Redis a job is a BullMQ job
        tls = "" if scheme.lower() == "redis" else ("&" if "?" in rest else "?") + "tls=true"
        given = f"bullmq://{rest}{tls}"
    return transport_from_url(given)


def _store(transport: Transport) -> JobStoring:
    if transport.capabilities.jobs and isinstance(transport, JobStoring):
        return transport
    return MessageJobs(transport)


async def calling(call: Awaitable[T], queue: str, job_id: str | None = None) -> T:
    """Await a call of the provider. What it raises is a ``JobError``."""
    try:
        return await call
    except MatadorError as error:
        found = job_error(error, queue, job_id)
        raise found from (None if found is error else error)


def job_error(error: MatadorError, queue: str, job_id: str | None = None) -> JobError | Any:
    """An error of a transport as one of jobs."""
    if isinstance(error, JobError | ConfigurationError | UnsupportedError):
        return error
    if isinstance(error, UnstorableError):
        return InvalidJob(str(error), queue=queue, job_id=job_id)
    found = JobProviderError(f"queue {queue!r}: {error}", queue=queue, job_id=job_id)
    found.code = "CONNECTION" if isinstance(error, NotConnectedError) else "PROVIDER"
    found.retryable = isinstance(error, TransportError)
    return found
