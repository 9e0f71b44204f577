"""Job providers: any transport, given as an object, by its URL, or created for each queue."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

from matador.errors import (
    ConfigurationError,
    InvalidJobError,
    JobError,
    JobNotFoundError,
    JobProviderError,
    JobsUnsupportedError,
    MatadorError,
    NotConnectedError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.job import PROVIDER_OPTIONS, JobCapabilities, JobCounts, JobRecord, JobStatus
from matador.model.message import Message, QueueDepth, Receipt, Retry, StoredMessage
from matador.model.topology import DeadLetters, Topology, WorkQueue, dead_letter_name
from matador.runtime.connection import Connection
from matador.transports.base import (
    Browsing,
    Choosing,
    JobNaming,
    JobStoring,
    Measuring,
    Purging,
    Transport,
    browses_dead_letters,
)
from matador.transports.credentials import without_secrets
from matador.transports.kit.jobs import as_new, provider_options, record_of
from matador.transports.memory import MemoryTransport, shared_memory

T = TypeVar("T")

ProviderFactory: TypeAlias = Callable[[str], "Transport | str"]
"""Creates the provider of a queue from the queue's name."""

ProviderLike: TypeAlias = "JobProvider | Transport | str | ProviderFactory"
"""The type of ``provider=``."""

_MEMORY = "memory://"


class JobProvider(Connection):
    """A transport that stores jobs. Queues and workers may share one.

    It connects on first use. A transport object belongs to the caller: it is disconnected only on
    request. A transport made from a URL is disconnected with its last user. In memory, all queues
    and workers of an event loop share one.

    Args:
        transport: a transport, or its URL.
        owned: whether the transport is disconnected with its last user. None: if it was made from
            a URL.
        priorities: whether queues on RabbitMQ have priorities. RabbitMQ does not replicate such
            queues, so by default jobs are stored in a quorum queue without priorities. An existing
            queue stays unchanged. No effect on other brokers.

    Raises:
        ConfigurationError: it is neither a transport nor a URL.

    Example:
        >>> provider = JobProvider("redis://localhost")
        >>> emails, texts = Queue("emails", provider=provider), Queue("texts", provider=provider)
    """

    def __init__(
        self,
        transport: Transport | str,
        *,
        owned: bool | None = None,
        priorities: bool = False,
    ) -> None:
        self._given = transport
        self._priorities = priorities
        super().__init__(_on_bullmq(transport), "JobProvider", owned=owned)
        self._stored: tuple[Transport, JobStoring] | None = None

    def another(self) -> JobProvider:
        super().another()  # raises if no other connection is possible
        return type(self)(self._given, owned=self._made_with[2], priorities=self._priorities)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_secrets(repr(self._given))})"

    @property
    def transport(self) -> Transport:
        """The transport. In memory, it is that of the running event loop."""
        if self.is_known:
            return super().transport
        url = str(self._given)
        try:
            return shared_memory(url)
        except RuntimeError:  # no event loop: a temporary one, for its capabilities
            return MemoryTransport.from_url(url)

    @property
    def store(self) -> JobStoring:
        """The job store of the transport."""
        transport = self.transport
        if self._stored is None or self._stored[0] is not transport:
            self._stored = transport, _store(transport, self._priorities)
        return self._stored[1]

    @property
    def capabilities(self) -> JobCapabilities:
        """The job features that it supports."""
        return self.store.job_capabilities


_WITH_JOBS = ("memory", "sqlite", "redis")
_PROVIDERS: dict[str, tuple[str, ...]] = {
    "provider_options": ("redis", "rabbitmq", "sqs", "kafka"),
    "concurrency_per_key": ("memory", "sqlite"),
    "priorities": (*_WITH_JOBS, "rabbitmq with JobProvider(url, priorities=True)"),
}
"""Which providers have an ability, unless ``_WITH_JOBS`` have it."""


def providers_with(ability: str) -> str:
    """The providers that have an ability, for errors: ``memory, sqlite and redis``."""
    *others, last = _PROVIDERS.get(ability, _WITH_JOBS)
    return f"{', '.join(others)} and {last}" if others else last


def unsupported(
    where: str, provider: str, ability: str, what: str, queue: str
) -> JobsUnsupportedError:
    """The error for an unsupported feature. It names the providers that support it."""
    able = providers_with(ability)
    lack, do = f"cannot {what}", "can"
    if ability == "results":
        lack, do = "keeps no results", "do"
    return JobsUnsupportedError(
        f"{where} the provider {provider!r} {lack}; {able} {do}", queue=queue
    )


def provider_for(given: ProviderLike | None, queue: str, where: str) -> JobProvider:
    """The provider for a value of ``provider=``.

    Raises:
        ConfigurationError: it is not a valid provider.
    """
    if given is None:
        return JobProvider(_MEMORY)
    if isinstance(given, JobProvider):
        return given
    if isinstance(given, str | Transport):
        try:
            return JobProvider(given)
        except ConfigurationError as error:  # without the address, which may contain a password
            raise ConfigurationError(f"{where} provider: {error}") from None
    if callable(given):
        return provider_for(given(queue), queue, where)
    raise ConfigurationError(
        f"{where} provider must be a URL, a transport, a JobProvider, or a function that makes "
        f"one from the name of a queue, got {given!r}"
    )


def another_provider(
    used: JobProvider, given: ProviderLike | None, queue: str, where: str
) -> JobProvider:
    """The provider for a value of ``provider=``, for another event loop than that of ``used``.

    Raises:
        LifecycleError: it is a transport object, which is connected.
    """
    made = callable(given) and not isinstance(given, JobProvider | Transport)
    return provider_for(given, queue, where) if made else used.another()


def _on_bullmq(given: Transport | str) -> Transport | str:
    """The URL of the transport that stores jobs: on Redis, a job is a BullMQ job."""
    if not isinstance(given, str):
        return given
    scheme, separator, rest = given.partition("://")
    if not separator or scheme.lower() not in ("redis", "rediss"):
        return given
    tls = "" if scheme.lower() == "redis" else ("&" if "?" in rest else "?") + "tls=true"
    return f"bullmq://{rest}{tls}"


def _store(transport: Transport, priorities: bool) -> JobStoring:
    if transport.capabilities.jobs and isinstance(transport, JobStoring):
        return transport
    return MessageJobs(transport, priorities=priorities)


async def calling(call: Awaitable[T], queue: str, job_id: str | None = None) -> T:
    """Await a call of the provider. Its errors become a ``JobError``."""
    try:
        return await call
    except MatadorError as error:
        found = job_error(error, queue, job_id)
        raise found from found.__cause__


def job_error(error: MatadorError, queue: str, job_id: str | None = None) -> JobError | Any:
    """Wrap an error of a transport in a ``JobError``."""
    if isinstance(error, JobError | ConfigurationError | UnsupportedError):
        return error
    if isinstance(error, UnstorableError):
        found = InvalidJobError(str(error), queue=queue, job_id=job_id)
    else:
        found = JobProviderError(f"queue {queue!r}: {error}", queue=queue, job_id=job_id)
        found.code = "CONNECTION" if isinstance(error, NotConnectedError) else "PROVIDER"
        found.retryable = isinstance(error, TransportError)
    found.__cause__ = error
    return found


# -- jobs as messages ------------------------------------------------------------------------------

NAMESPACE = "jobs"
"""The namespace of job queues on transports with namespaces: ``jobs.emails``."""


_HEADERS, _ORDERING_KEY = "headers", "ordering_key"
"""The ``provider_options`` of message brokers."""


class MessageJobs:
    """Implements ``JobStoring`` on brokers that only store messages: jobs are sent, run and
    retried, and failed jobs are kept as dead letters. No other job state is stored."""

    def __init__(self, transport: Transport, *, priorities: bool = False) -> None:
        self._transport = transport
        self._priorities = priorities and transport.capabilities.priorities

    @property
    def job_capabilities(self) -> JobCapabilities:
        can = self._transport.capabilities
        return JobCapabilities(
            delays=can.delays,
            priorities=self._priorities,
            provider_options=not isinstance(self._transport, Choosing),  # a group has none
            backoff=can.delays,
            dead_letters=can.dead_letters != "none",
            counts=can.depth,
            retry=browses_dead_letters(self._transport),
            delete=can.purge,
            max_job_size=can.max_message_size,
            max_delay=can.max_delay,
        )

    async def open_jobs(self, queue: str) -> str:
        topology = self.topology(queue)
        await self._transport.apply_topology(topology)
        return topology.full_name(queue)

    def topology(self, queue: str) -> Topology:
        """The topology of a job queue."""
        transport = self._transport
        own = isinstance(transport, JobNaming)
        return transport.job_topology(queue) if own else job_topology(queue, self._priorities)

    async def add_jobs(self, jobs: Sequence[Message]) -> Sequence[MatadorError | None]:
        """Does not detect duplicate ids."""
        outcomes: list[MatadorError | None] = [None] * len(jobs)
        messages: dict[int, Message] = {}
        for index, job in enumerate(jobs):
            try:
                messages[index] = self._with_options(job)
            except UnstorableError as error:
                outcomes[index] = error
        sent = await self._transport.send(list(messages.values()))
        for index, error in zip(messages, sent, strict=True):
            outcomes[index] = error
        return outcomes

    def _with_options(self, job: Message) -> Message:
        """The message of a job with its ``provider_options`` applied.

        Raises:
            UnstorableError: there is no such option here, or its value is wrong.
        """
        given = provider_options(job.headers)
        if not given:
            return job
        known = [_HEADERS]
        if self._transport.capabilities.ordering == "partition":
            known.append(_ORDERING_KEY)
        headers = {name: one for name, one in job.headers.items() if name != PROVIDER_OPTIONS}
        for option, value in given.items():
            what = f"provider option {option!r}"
            if option not in known:
                raise UnstorableError(
                    f"{what} is not one of {self._transport.name} (known: {', '.join(known)})"
                )
            if option == _ORDERING_KEY and not isinstance(value, str):
                raise UnstorableError(f"{what} must be text, got {value!r}")
            if option == _HEADERS:
                for name, one in _headers(value, what).items():
                    headers.setdefault(name, one)
        key = given.get(_ORDERING_KEY, job.ordering_key)
        return msgspec.structs.replace(job, headers=headers, ordering_key=key)

    async def find_jobs(self, queue: str, ids: Sequence[str]) -> Sequence[JobRecord | None]:
        self._cannot(queue, "find", "find a job by its id")

    async def list_jobs(
        self, queue: str, status: JobStatus, *, limit: int, skip: int = 0
    ) -> Sequence[JobRecord]:
        """Failed ones only."""
        if status != "failed":
            self._cannot(queue, "list", f"list jobs that are {status}")
        letters = self._letters(queue, "list failed jobs")
        found = [_record(queue, letter) async for letter in letters]
        return found[::-1][skip : skip + limit]

    async def count_jobs(self, queue: str) -> JobCounts:
        """Completed jobs are gone."""
        if not isinstance(self._transport, Measuring):
            self._cannot(queue, "counts", "count jobs")
        depth = await self._transport.depth(queue)
        failed = await self._transport.depth(dead_letter_name(queue, "undeliverable"))
        return JobCounts(
            waiting=depth.ready,
            delayed=depth.delayed,
            active=depth.in_flight,
            failed=failed.total,
            workers=depth.consumers,
            unknown=frozenset({"completed", *_unknown(depth)}),
        )

    async def retry_job(self, queue: str, job_id: str) -> None:
        """Searches the dead letters."""
        outcomes = await self.retry_jobs(queue, {job_id})
        if job_id not in outcomes:
            raise JobNotFoundError(
                f"queue {queue!r} has no failed job {job_id!r}", queue=queue, job_id=job_id
            )
        error = outcomes[job_id]
        if error is not None:
            raise error

    async def retry_jobs(self, queue: str, ids: Collection[str]) -> dict[str, MatadorError | None]:
        """``retry_job`` for many, in one pass over the dead letters. For each job found: None, or
        the error."""
        letters = self._letters(queue, "retry a failed job")
        # Browse all before taking one: some brokers hold messages while they are browsed.
        found = {letter.id: letter async for letter in letters if letter.id in ids}
        outcomes: dict[str, MatadorError | None] = {}
        for letter in found.values():
            assert isinstance(self._transport, Browsing)
            (delivery,) = await self._transport.take(letter.queue, [letter.position])
            if delivery is None:
                continue
            again = Message(
                letter.id,
                queue,
                delivery.body,
                as_new(delivery.headers),
                priority=letter.priority,
                ordering_key=letter.ordering_key,
                properties=delivery.properties,
            )
            (error,) = await self._transport.settle([Retry(delivery.receipt, again)])
            outcomes[letter.id] = error
        return outcomes

    async def remove_job(self, queue: str, job_id: str) -> None:
        self._cannot(queue, "remove", "remove a job by its id")

    async def cancel_job(self, queue: str, job_id: str, reason: str) -> bool:
        self._cannot(queue, "cancel", "cancel a job by its id")

    async def set_progress(self, receipt: Receipt, progress: bytes) -> None:
        """Progress is not stored. The worker's listeners are notified nevertheless."""

    async def pause_jobs(self, queue: str) -> None:
        self._cannot(queue, "pause", "pause a queue for all workers (worker.pause() pauses one)")

    async def resume_jobs(self, queue: str) -> None:
        self._cannot(queue, "pause", "pause a queue for all workers (worker.resume() resumes one)")

    async def delete_jobs(self, queue: str) -> None:
        """Does not delete jobs in flight."""
        if not isinstance(self._transport, Purging):
            self._cannot(queue, "delete", "delete a queue")
        await self._transport.purge(queue)
        await self._transport.purge(dead_letter_name(queue, "undeliverable"))

    def _letters(self, queue: str, what: str) -> AsyncIterator[StoredMessage]:
        transport = self._transport
        if not isinstance(transport, Browsing) or not self.job_capabilities.retry:
            self._cannot(queue, "retry", what)
        return transport.browse(dead_letter_name(queue, "undeliverable"))

    def _cannot(self, queue: str, ability: str, what: str) -> NoReturn:
        where = f"[Queue:{queue}]"
        raise unsupported(where, self._transport.name, ability, what, queue)


def job_topology(queue: str, priorities: bool = False) -> Topology:
    """The topology that a queue of jobs needs."""
    return Topology(
        NAMESPACE,
        queues=[WorkQueue(queue, priorities=priorities)],
        dead_letters=DeadLetters(unhandled=False),
    )


def jobs_topology(provider: JobProvider, queue: str) -> Topology:
    """The queue of a provider and its failed jobs, by their full names."""
    store = provider.store
    if isinstance(store, MessageJobs):
        return store.topology(queue)
    return Topology(
        NAMESPACE,
        queues=[WorkQueue(queue, exact=True)],
        dead_letters=DeadLetters(unhandled=False),
    )


def _headers(given: object, what: str) -> Mapping[str, str | int]:
    try:
        return msgspec.convert(given, dict[str, str | int])
    except msgspec.ValidationError as error:
        raise UnstorableError(
            f"{what} must be a mapping of text and whole numbers: {error}"
        ) from None


def _unknown(depth: QueueDepth) -> set[JobStatus]:
    names: dict[str, JobStatus] = {"delayed": "delayed", "in_flight": "active"}
    return {names[name] for name in depth.unknown}


def _record(queue: str, letter: StoredMessage) -> JobRecord:
    stored = letter.stored_at
    return record_of(
        letter.id,
        queue,
        letter.headers,
        letter.body,
        "failed",
        priority=letter.priority,
        stored_at=0.0 if stored is None else stored.timestamp(),
    )
