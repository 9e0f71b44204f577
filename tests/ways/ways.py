"""The five ways in behind one small interface: a handler that receives, and a message for it.

Every message has a number, ``{"n": 1}``. A handler takes that number and the context, whatever the
way in, so that a test of what all of them promise is written once.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from tests.ways.places import SHORTEST_LEASE, Place

from matador import Context, Envelope, Hooks, Matador, Schema, Topology, WorkQueue
from matador import event as event_type
from matador import subscriber as subscribed
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.channels.settings import DeadLetterQueueSettings
from matador.jobs import ActiveJob, Queue, Worker
from matador.model import job as job_headers
from matador.model.message import ERROR_TYPE_HEADER, Complete, Delivery, Message, Properties
from matador.model.topology import DeadLetters, dead_letter_name
from matador.pubsub import MessageContext, Publisher, Subscriber, Validation
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.runtime.facts import Attempt, Sent
from matador.runtime.service import Service
from matador.testing import make_envelope
from matador.transports.base import Transport
from matador.transports.clock import SystemClock

Handle = Callable[[int, Any], Awaitable[Any]]
"""Handles the message with a number; the context is that of the way in."""

_NUMBER = re.compile(rb'"n":\s*(\d+)')


def number_of(body: bytes) -> int | None:
    """The number in a stored message; None if it has none."""
    found = _NUMBER.search(body)
    return None if found is None else int(found[1])


OPENED: list[int] = []
"""The messages whose payload was decoded: a validator of a user's may kill its process, too."""


@dataclass(frozen=True)
class Thing:
    """What every message says."""

    n: int

    def __post_init__(self) -> None:
        OPENED.append(self.n)


ThingHappened = event_type("thing.happened", description="Something happened.")(Thing)


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    body: bytes
    reason: str

    @property
    def number(self) -> int | None:
        return number_of(self.body)


@dataclass(frozen=True)
class Failed:
    """What a dead letter says of its message and of its failure; None: its way in does not say."""

    id: str | None
    attempts: int
    last_error: str
    first_error: str | None = None
    error_type: str | None = None
    queue: str | None = None
    metadata: Mapping[str, Any] | None = None
    correlation_id: str | None = None


class Facts(Hooks):
    """Notes what was sent and attempted. An attempt is told once its outcome is stored."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.attempts: list[Attempt] = []

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent += batch

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        self.attempts += batch

    def of(self, n: int | None) -> list[Attempt]:
        """The attempts of one message."""
        return [one for one in self.attempts if number_of(one.delivery.body) == n]

    def outcomes(self, n: int | None) -> list[str]:
        """How they ended."""
        return [one.outcome for one in self.of(n)]


class Way(ABC):
    """A way in on one transport."""

    name: ClassVar[str]
    fact: ClassVar[str]
    """What facts call it."""
    called: ClassVar[str]
    """What facts call its messages."""
    lacks: ClassVar[Mapping[str, str]] = {}
    """Transports that do not carry it, and why."""
    expires: ClassVar[bool] = True
    """Its messages may have a deadline."""
    chooses_malformed: ClassVar[bool] = True
    """It has an option for messages that cannot be read."""
    keeping_is_chosen: ClassVar[bool] = True
    """The receiver says whether dead letters are kept."""
    outlives: ClassVar[bool] = True
    """Its messages wait while nobody receives."""
    kind: ClassVar[str] = "dlq"
    """Of its dead letters."""
    verb: ClassVar[str] = "send"
    """What traces call a send."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tag = place.tag
        self.sender_hooks: Sequence[Hooks] = ()
        self.lease: float | None = None
        self._sender: Any = None
        self._looking: Transport | None = None

    @property
    def url(self) -> str:
        return self.place.url(lease=self.lease)

    # -- what each way in says --------------------------------------------------------------------

    @abstractmethod
    def receiver(self, handle: Handle, **options: Any) -> Service:
        """The public object that receives, not started. ``options``: as for ``receiving``."""

    @abstractmethod
    def sender(self, **options: Any) -> Service:
        """The public object that sends, not started."""

    @abstractmethod
    async def _send(self, sender: Any, n: int, id: str | None, **labels: Any) -> Any:
        """Send a message with the public object. ``labels``: ``metadata``, ``correlation_id``."""

    @abstractmethod
    def failed(self, letter: Delivery) -> Failed:
        """What a dead letter says."""

    @property
    @abstractmethod
    def queue(self) -> str:
        """The full name of the queue."""

    def properties(self) -> Properties | None:
        """Those that a message needs to find its handler."""
        return None

    def headers(self, id: str) -> Mapping[str, str | int]:
        """Those that a message needs to find its handler."""
        return {}

    def because(self, reason: str, error: str) -> str:
        """The reason of a dead letter whose handler failed."""
        return reason

    # -- what tests use ---------------------------------------------------------------------------

    @asynccontextmanager
    async def receiving(self, handle: Handle, **options: Any) -> AsyncGenerator[Any]:
        """A started receiver. Options: ``retry``, ``idempotent``, ``timeout``, ``deduplication``,
        ``checkpoints``, ``hooks``, ``concurrency``, ``delivery``, ``malformed``, ``dead_letters``.
        """
        service = self.receiver(handle, **options)
        await self.started(service)
        try:
            yield service
        finally:
            await service.shutdown(timeout=5)

    async def started(self, service: Service) -> None:
        await service.start()
        assert service._connection is not None
        self.place.used.add(service._connection.transport)

    async def send(self, n: int, id: str | None = None, **labels: Any) -> Any:
        """Send a message, once somebody has received here."""
        if self._sender is None:
            sender = self.sender()
            await self.started(sender)
            self._sender = sender
        return await self._send(self._sender, n, id, **labels)

    def message(self, n: int | None = None, body: bytes = b"", **properties: Any) -> Message:
        """A message as another program would send it: with a number, or with any bytes."""
        id_, given = uuid4().hex, self.properties()
        if properties:
            given = replace(given or Properties(), **properties)
        if n is not None:
            body = b'{"n":%d}' % n
        return Message(id_, self.queue, body, self.headers(id_), properties=given)

    async def store(self, *messages: Message) -> None:
        """Put messages into the queue, whoever runs."""
        transport = await self.looking()
        assert list(await transport.send(messages)) == [None] * len(messages)

    async def looking(self) -> Transport:
        """A connected transport beside the services."""
        if self._looking is None:
            self._looking = self._open()
        await self._looking.connect()
        return self._looking

    def _open(self, *, lease: float | None = None) -> Transport:
        return self.place.open(lease=lease)

    async def dead_letters(self) -> list[Letter]:
        """All dead letters, oldest first."""
        transport: Any = await self.looking()
        found = transport.browse(self._letters)
        return [Letter(one.body, one.reason or "") async for one in found]

    async def take_letter(self) -> Delivery:
        """Receive a dead letter, and delete it."""
        transport = await self.looking()
        subscription = await transport.subscribe(self._letters, prefetch=1)
        async with asyncio.timeout(60):
            while not (taken := await subscription.receive(1)):
                pass
        assert await transport.settle([Complete(taken[0].receipt)]) == [None]
        await subscription.close()
        return taken[0]

    @property
    def _letters(self) -> str:
        return dead_letter_name(self.queue, self.kind)  # type: ignore[arg-type] - a kind

    async def depth(self) -> int:
        """How many messages wait to be received."""
        transport: Any = await self.looking()
        found: int = (await transport.depth(self.queue)).ready
        return found

    async def left(self) -> int:
        """How many messages are in the queue, those in flight included where the broker counts."""
        transport: Any = await self.looking()
        found: int = (await transport.depth(self.queue)).total
        return found

    async def abandon(self, number: int, times: int = 1) -> None:
        """Receive a message as workers do that die before they can say what came of it.

        It has to be alone in its queue: no other is delivered too often then, however long it takes
        until this one comes again.
        """
        for count in range(1, times + 1):
            transport = self._open(lease=SHORTEST_LEASE.get(self.place.transport))
            await transport.connect()
            subscription = await transport.subscribe(self.queue, prefetch=1)
            held: Sequence[Delivery] = ()
            async with asyncio.timeout(60):
                while not held:
                    held = await subscription.receive(1)
            (one,) = held
            assert (number_of(one.body), one.receipt.delivery_count) == (number, count)
            await transport.disconnect()

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.shutdown(timeout=5)
        if self._looking is not None:
            await self._looking.disconnect()


# -- events ---------------------------------------------------------------------------------------


class Events(Way):
    name, fact, called, kind = "events", "event", "thing.happened", "undeliverable"
    expires = False  # envelopes have no deadline

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._app: Matador | None = None

    def receiver(
        self,
        handle: Handle,
        *,
        idempotent: Any = "yes",
        timeout: float | None = None,
        concurrency: int = 4,
        dead_letters: bool = True,
        **options: Any,
    ) -> Matador:
        @subscribed(name="work", description="Work.", idempotent=idempotent)
        async def work(envelope: Envelope[Thing], ctx: Context) -> Any:
            return await handle(envelope.data.n, ctx)

        queue = WorkQueue("q", concurrency=concurrency, consumer_timeout=timeout)
        letters = DeadLetters(unhandled=dead_letters, undeliverable=dead_letters)
        self._app = Matador(
            self.place.open(lease=self.lease),
            schema=Schema({ThingHappened: [work]}),
            topology=Topology(self.tag, queues=[queue], dead_letters=letters),
            consume_from=["q"],
            **options,
        )
        return self._app

    def sender(self, **options: Any) -> Service:
        assert self._app is not None
        return self._app  # an application sends and receives

    async def send(self, n: int, id: str | None = None, **labels: Any) -> Any:
        assert self._app is not None
        return await self._send(self._app, n, id, **labels)

    async def _send(self, sender: Any, n: int, id: str | None, **labels: Any) -> Any:
        if id is None:
            return await sender.send(Thing(n), **labels)
        return await self.store(self.message(n, id=id))

    def failed(self, letter: Delivery) -> Failed:
        assert self._app is not None
        envelope = self._app.codec.decode(letter.body, letter.headers, SystemClock())
        docket = envelope.docket
        return Failed(
            envelope.id,
            docket.attempts,
            str(docket.last_error),
            docket.first_error,
            str(letter.headers[ERROR_TYPE_HEADER]),
            docket.original_queue,
            docket.metadata,
            docket.correlation_id,
        )

    def message(
        self, n: int | None = None, body: bytes = b"", *, id: str | None = None, **properties: Any
    ) -> Message:
        if n is None:
            return super().message(body=body, **properties)
        assert self._app is not None
        envelope = make_envelope(
            Raw(b'{"n":%d}' % n), id=id, event_key=self.called, subscriber="work"
        )
        encoded = self._app.codec.encode(envelope)
        return Message(envelope.id, self.queue, encoded.body, encoded.headers)

    async def close(self) -> None:
        await super().close()
        if self._app is not None:
            await self._app.shutdown(timeout=5)

    @property
    def queue(self) -> str:
        return f"{self.tag}.q"


# -- jobs -----------------------------------------------------------------------------------------


class Jobs(Way):
    name, fact, called, kind = "jobs", "job", "thing", "undeliverable"
    lacks: ClassVar[Mapping[str, str]] = {"kafka": "no provider of jobs"}
    expires = False  # jobs have no deadline
    chooses_malformed = False  # they are always kept, as failed jobs
    keeping_is_chosen = False  # a job says itself whether it is kept
    _full_name: str

    def receiver(
        self,
        handle: Handle,
        *,
        concurrency: int = 4,
        dead_letters: bool = True,
        **options: Any,
    ) -> Worker:
        assert dead_letters, "jobs say themselves whether they are kept"

        async def work(job: ActiveJob[Thing]) -> Any:
            return await handle(job.data.n, job)

        return Worker(self.tag, work, provider=self.url, concurrency=concurrency, **options)

    def sender(self, **options: Any) -> Queue:
        return Queue(self.tag, provider=self.url, hooks=list(self.sender_hooks), **options)

    async def _send(self, sender: Queue, n: int, id: str | None, **labels: Any) -> Any:
        given: Any = {"metadata": labels.get("metadata")}  # a job has no correlation id
        return await sender.add("thing", Thing(n), job_id=id, remove_on_complete=False, **given)

    def failed(self, letter: Delivery) -> Failed:
        headers = letter.headers
        return Failed(
            str(headers[job_headers.ID]),
            int(headers[job_headers.ATTEMPTS]),
            str(headers[job_headers.ERROR]),
            metadata=msgspec.json.decode(letter.body)["_metadata"],
        )

    def _open(self, *, lease: float | None = None) -> Transport:
        return self.place.open(lease=lease, jobs=True)

    def headers(self, id: str) -> Mapping[str, str | int]:
        return {job_headers.ID: id, job_headers.NAME: "thing", job_headers.MAX_ATTEMPTS: 3}

    def because(self, reason: str, error: str) -> str:
        return error  # providers show it as the error of the job

    async def started(self, service: Service) -> None:
        await super().started(service)
        if isinstance(service, Worker):
            (consumed,) = service.consumer_health
            self._full_name = consumed.queue

    @property
    def queue(self) -> str:
        return self._full_name


# -- plain messages -------------------------------------------------------------------------------


class Plain(Way):
    """What RPC, pub/sub and channels share."""

    def receiver(
        self,
        handle: Handle,
        *,
        idempotent: Any = "yes",
        concurrency: int = 4,
        malformed: Any = None,
        **options: Any,
    ) -> Service:
        if malformed is not None:
            options["validation"] = Validation(malformed=malformed)
        return self._receiver(handle, idempotent, concurrency, **options)

    @abstractmethod
    def _receiver(
        self, handle: Handle, idempotent: Any, concurrency: int, **options: Any
    ) -> Service:
        """The public object that receives."""

    def failed(self, letter: Delivery) -> Failed:
        headers, properties = letter.headers, letter.properties
        own = {name: value for name, value in headers.items() if not name.startswith("x-")}
        return Failed(
            letter.id,
            int(headers["x-retry-count"]),
            str(headers["x-matador-last-error"]),
            None,
            str(headers[ERROR_TYPE_HEADER]),
            str(headers["x-matador-original-queue"]),
            own,
            None if properties is None else properties.correlation_id,
        )


class Notify(Plain):
    """RPC without a reply."""

    name, fact, called = "notify", "rpc", "THING"
    lacks: ClassVar[Mapping[str, str]] = {"sqs": "no address for replies"}

    def _receiver(
        self, handle: Handle, idempotent: Any, concurrency: int, **options: Any
    ) -> RpcServer:
        server = RpcServer(self.url, queue=self.queue, concurrency=concurrency, **options)

        @server.handler("THING", idempotent=idempotent)
        async def thing(data: Thing, ctx: RpcContext) -> Any:
            return await handle(data.n, ctx)

        return server

    def sender(self, **options: Any) -> RpcClient:
        return RpcClient(self.url, queue=self.queue, hooks=list(self.sender_hooks), **options)

    async def _send(self, sender: RpcClient, n: int, id: str | None, **labels: Any) -> Any:
        return await sender.notify("THING", Thing(n), message_id=id, **labels)

    def properties(self) -> Properties:
        return Properties(type="THING")

    @property
    def queue(self) -> str:
        return f"{self.tag}-calls"


class Call(Notify):
    """RPC with a caller that waits."""

    name = verb = "call"

    async def _send(self, sender: RpcClient, n: int, id: str | None, **labels: Any) -> Any:
        return await sender.call("THING", Thing(n), message_id=id, timeout=60, **labels)


class PubSub(Plain):
    name, fact, called, verb = "pubsub", "message", "thing.happened", "publish"
    lacks: ClassVar[Mapping[str, str]] = {"sqs": "no exchanges"}

    def _receiver(
        self, handle: Handle, idempotent: Any, concurrency: int, **options: Any
    ) -> Subscriber:
        sub = Subscriber(
            self.url, exchange=self.exchange, queue=self.queue, concurrency=concurrency, **options
        )

        @sub.on("thing.*", idempotent=idempotent)
        async def thing(data: Thing, ctx: MessageContext) -> Any:
            return await handle(data.n, ctx)

        return sub

    def sender(self, **options: Any) -> Publisher:
        return Publisher(self.url, exchange=self.exchange, hooks=list(self.sender_hooks), **options)

    async def _send(self, sender: Publisher, n: int, id: str | None, **labels: Any) -> Any:
        return await sender.publish("thing.happened", Thing(n), message_id=id, **labels)

    def properties(self) -> Properties:
        return Properties(routing_key="thing.happened")

    @property
    def exchange(self) -> str:
        return f"{self.tag}-exchange"

    @property
    def queue(self) -> str:
        return f"{self.tag}-things"


class ChannelSend(Plain):
    """A channel's message for one consumer."""

    name, fact, called = "send", "message", "happened"
    mode: ClassVar[Any] = "stream"
    """On Redis."""

    def _receiver(
        self,
        handle: Handle,
        idempotent: Any,
        concurrency: int,
        *,
        dead_letters: bool = True,
        **options: Any,
    ) -> QueueService:
        @channel(self.tag)
        class Things:
            @consume("happened", idempotent=idempotent)
            async def happened(self, data: Thing, ctx: MessageContext) -> Any:
                return await handle(data.n, ctx)

        settings = self._settings(concurrency, dead_letters)
        return QueueService(settings, channels=[Things], **options)

    def _settings(self, concurrency: int = 1, dead_letters: bool = True) -> Settings:
        kind: Any = self.place.transport
        mode = self.mode if kind == "redis" else None
        queue = QueueSettings(type=kind, url=self.url, mode=mode, prefetch=concurrency)
        letters = DeadLetterQueueSettings(enabled=dead_letters)
        return Settings(queue, dead_letter_queue=letters)

    def sender(self, **options: Any) -> QueueService:
        return QueueService(self._settings(), hooks=list(self.sender_hooks), **options)

    async def _send(self, sender: QueueService, n: int, id: str | None, **labels: Any) -> Any:
        return await sender.send(self.tag, "happened", Thing(n), message_id=id, **_headers(labels))

    def properties(self) -> Properties:
        return Properties(routing_key="happened")

    @property
    def queue(self) -> str:
        return f"{self.tag}.happened"


def _headers(labels: Mapping[str, Any]) -> dict[str, Any]:
    """A channel calls metadata headers."""
    return {"headers" if name == "metadata" else name: one for name, one in labels.items()}


class ChannelPublish(ChannelSend):
    """A channel's message for all services that run."""

    name = verb = "publish"
    lacks: ClassVar[Mapping[str, str]] = {"sqs": "no exchanges"}
    outlives = False

    async def store(self, *messages: Message) -> None:
        transport: Any = await self.looking()
        assert list(await transport.publish(self.tag, messages)) == [1] * len(messages)

    async def _send(self, sender: QueueService, n: int, id: str | None, **labels: Any) -> Any:
        given = _headers(labels)
        return await sender.publish(self.tag, "happened", Thing(n), message_id=id, **given)


ALL: Sequence[type[Way]] = (Events, Jobs, Notify, PubSub, ChannelSend, ChannelPublish)
"""The five ways in; a channel has two. ``Call`` has rules of its own: its caller is told."""

PLAIN: Sequence[type[Way]] = (Notify, PubSub, ChannelSend, ChannelPublish)

THOROUGH = ("memory", "sqlite", "redis", "rabbitmq")
"""Where every variation of a settlement is tested."""

SLOW = ("sqs", "kafka")
"""Where one case of each kind of settlement is tested for each way in: they take seconds for what
the others do in milliseconds. Of a parametrized test the first case runs."""

PIPELINE = ("memory", "sqlite", "rabbitmq")
"""Where facts of the pipeline are tested: what is decided without the transport, and carried out by
settlements that other tests have on all of them."""

TRANSPORTS = (*THOROUGH, *SLOW)
IN_PROCESS = ("memory", "sqlite")


def over(**options: Any) -> Callable[[Any], Any]:
    """Choose the ways in and transports of a test.

    ``ways``, ``transports``: instead of all. ``also``: ways beside them. Others: what a way must
    be like, such as ``expires=True``.
    """

    def chosen(test: Any) -> Any:
        test.over = options
        return test

    return chosen
