"""``running``: runs any Matador service in memory, with a clock that the test advances."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from matador.channels import QueueService
from matador.errors import ConfigurationError
from matador.events.app import Matador
from matador.jobs import Job, Queue, Worker
from matador.jobs.options import JobOptions
from matador.model.capabilities import Capabilities
from matador.model.schema import Schema
from matador.model.sending import SendResult
from matador.model.subscriber import AnySubscriber, SubscriberStub
from matador.model.topology import Topology
from matador.pubsub import Published, Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.checkpoints import CheckpointStore, MemoryCheckpointStore
from matador.runtime.service import Service
from matador.testing.clock import ManualClock
from matador.testing.harness import Harness, Recorder
from matador.transports.memory import MemoryTransport

T = TypeVar("T")

_LAST_CALLBACKS = 1.0

_Parts: TypeAlias = tuple[Sequence[Service], MemoryTransport, ManualClock, Recorder]
"""The arguments of every harness."""


class AppHarness(Harness):
    """Runs an application.

    Attributes:
        app: the application; code under test can use it as usual.
    """

    def __init__(self, app: Matador, *parts: *_Parts) -> None:
        super().__init__(*parts)
        self.app = app

    async def send(self, *payload: Any, **options: Any) -> SendResult:
        """Like ``app.send``, but raises errors regardless of ``send_errors``."""
        return (await self.app.send(*payload, **options)).raise_for_errors()


class JobHarness(Harness):
    """Runs the jobs of a queue.

    Attributes:
        queue: the queue of jobs.
        worker: runs them; None: the queue declares no jobs, so they wait.
    """

    def __init__(self, queue: Queue, worker: Worker | None, *parts: *_Parts) -> None:
        super().__init__(*parts)
        self.queue, self.worker = queue, worker

    async def add(
        self,
        name: str,
        data: Any = None,
        *,
        job_id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Any]:
        """``queue.add``. Declared jobs are added as usual: ``await welcome.add(to=…)``."""
        return await self.queue.add(name, data, job_id=job_id, **options)

    async def _next_event(self) -> float | None:
        message, schedules = await super()._next_event(), await self.queue.schedules()
        if self.worker is None or not schedules:
            return message
        now, offset = self.clock.monotonic(), self.clock.time() - self.clock.monotonic()
        times = [one.next_at.timestamp() - offset for one in schedules if one.next_at is not None]
        # The worker finds a schedule that is already due with its next poll, which is an alarm.
        due = [self.clock.next_alarm if time <= now else time for time in times]
        return min((one for one in (*due, message) if one is not None), default=None)


class RpcHarness(Harness):
    """Runs an RPC server, with a client that calls it.

    Attributes:
        server: the server.
        client: a client of it.
    """

    def __init__(self, server: RpcServer, client: RpcClient, *parts: *_Parts) -> None:
        super().__init__(*parts)
        self.server, self.client = server, client

    @overload
    async def call(
        self, command: str, data: object = None, *, result_type: type[T], **options: Any
    ) -> T: ...
    @overload
    async def call(
        self, command: str, data: object = None, *, result_type: Any = Any, **options: Any
    ) -> Any: ...
    async def call(
        self, command: str, data: object = None, *, result_type: Any = Any, **options: Any
    ) -> Any:
        """``client.call``: the result, or ``RemoteError``. Advances the clock to each retry.

        Raises:
            RpcTimeoutError: there is no reply: the call expired before it was run again.
        """
        call = self.client.call(command, data, result_type=result_type, **options)
        return await self._answered(call, command)

    async def notify(self, command: str, data: object = None, **options: Any) -> str:
        """``client.notify``: run by ``drain``."""
        return await self.client.notify(command, data, **options)


class PubSubHarness(Harness):
    """Runs a pub/sub subscriber, with a publisher for its exchange.

    Attributes:
        subscriber: the subscriber.
        publisher: publishes to its exchange.
    """

    def __init__(self, subscriber: Subscriber, publisher: Publisher, *parts: *_Parts) -> None:
        super().__init__(*parts)
        self.subscriber, self.publisher = subscriber, publisher

    async def publish(self, routing_key: str, data: object, **options: Any) -> Published:
        """``publisher.publish``."""
        return await self.publisher.publish(routing_key, data, **options)


class ChannelHarness(Harness):
    """Runs a queue service.

    Attributes:
        service: the queue service.
    """

    def __init__(self, service: QueueService, *parts: *_Parts) -> None:
        super().__init__(*parts)
        self.service = service

    async def send(self, channel: str, name: str, data: object, **options: Any) -> str:
        """``service.send``: to one consumer."""
        return await self.service.send(channel, name, data, **options)

    async def publish(self, channel: str, name: str, data: object, **options: Any) -> str:
        """``service.publish``: to every service that runs."""
        return await self.service.publish(channel, name, data, **options)


class _Options(TypedDict, total=False):
    """Options of ``running``, for its overloads."""

    also: Sequence[Service]
    clock: ManualClock | None
    checkpoints: CheckpointStore | None


@overload
def running(
    x: Matador | Schema,
    *,
    consume_from: Iterable[str] | None = None,
    **options: Unpack[_Options],
) -> AbstractAsyncContextManager[AppHarness]: ...
@overload
def running(
    x: Queue | Worker, **options: Unpack[_Options]
) -> AbstractAsyncContextManager[JobHarness]: ...
@overload
def running(
    x: RpcServer, **options: Unpack[_Options]
) -> AbstractAsyncContextManager[RpcHarness]: ...
@overload
def running(
    x: Subscriber, **options: Unpack[_Options]
) -> AbstractAsyncContextManager[PubSubHarness]: ...
@overload
def running(
    x: QueueService, **options: Unpack[_Options]
) -> AbstractAsyncContextManager[ChannelHarness]: ...
@overload
def running(
    x: RpcClient | Publisher, **options: Unpack[_Options]
) -> AbstractAsyncContextManager[Harness]: ...
def running(
    x: Service | Schema,
    *,
    also: Sequence[Service] = (),
    consume_from: Iterable[str] | None = None,
    clock: ManualClock | None = None,
    checkpoints: CheckpointStore | None = None,
) -> AbstractAsyncContextManager[Any]:
    """Run an application, jobs, a server, a subscriber or a queue service in memory for a test.

    This runs the object itself with its handlers and options (retries, timeouts, duplicates, ...),
    so code that uses it sends through it as usual. Only the transport and the clock are replaced,
    and the stores of steps and duplicates are in memory. Afterwards, everything is restored.

    Args:
        x: an unstarted service: a ``Matador``, a ``Queue`` (its declared jobs get a worker), a
            ``Worker``, an ``RpcServer``, a ``Subscriber``, a ``QueueService``, an ``RpcClient`` or
            a ``Publisher``. A ``Schema`` becomes an application that consumes every queue without
            stubs.
        also: other services that the code under test uses, on the same transport and clock: a
            publisher, a client, the queue to which a handler adds jobs.
        consume_from: the queues that an application consumes; by default its own. Messages to
            stubs stay in their queues.
        clock: the clock; a new one by default. It also measures the timeouts of handlers.
        checkpoints: where resumable handlers store their steps; in memory by default.

    Raises:
        ConfigurationError: it is none of these.
        LifecycleError: it is running already.

    Example:
        >>> async with running(app) as harness:
        ...     await harness.send(OrderPlaced("o-1", 5))
        ...     await harness.drain()
        ...     assert len(harness.handled("email-receipt")) == 1
    """
    return _running(x, also, consume_from, clock or ManualClock(), checkpoints)


@asynccontextmanager
async def _running(
    given: Service | Schema,
    also: Sequence[Service],
    consume_from: Iterable[str] | None,
    clock: ManualClock,
    checkpoints: CheckpointStore | None,
) -> AsyncGenerator[Harness]:
    x = _app_of(given) if isinstance(given, Schema) else given
    transport, record = _Reaching(clock=clock), Recorder()
    store = MemoryCheckpointStore(clock=clock) if checkpoints is None else checkpoints
    async with AsyncExitStack() as stack:
        stack.push_async_callback(transport.disconnect)
        if isinstance(x, Matador) and consume_from is not None:
            stack.enter_context(x.configured(consume_from=consume_from))
        make, services = _built(x, transport)
        services = list({id(one): one for one in (*services[1:], *also, services[0])}.values())
        for service in services:
            stack.enter_context(service.rehosted(transport, clock, store, [record]))
        for service in services:  # the one under test ends first, while its handlers can still send
            stack.push_async_callback(service.shutdown, _LAST_CALLBACKS)
            await service.start()
        yield make(services, transport, clock, record)


def _built(
    x: Service, transport: MemoryTransport
) -> tuple[Callable[[Unpack[_Parts]], Harness], Sequence[Service]]:
    """The harness for a service, and the services to run: the service itself first."""
    match x:
        case Matador():
            return partial(AppHarness, x), [x]
        case Queue():
            x.provider_here()  # an event loop that it was used in before has ended
            if not x.declared:
                return partial(JobHarness, x, None), [x]
            worker = Worker(x)
            return partial(JobHarness, x, worker), [worker, x]
        case Worker():
            queue = x.shared_queue or Queue(x.queue, provider=transport)
            queue.provider_here()
            return partial(JobHarness, queue, x), [x, queue]
        case RpcServer():
            client = RpcClient(transport, queue=x.queue)
            return partial(RpcHarness, x, client), [x, client]
        case Subscriber():
            publisher = Publisher(transport, exchange=x.exchange)
            return partial(PubSubHarness, x, publisher), [x, publisher]
        case QueueService():
            return partial(ChannelHarness, x), [x]
        case RpcClient() | Publisher():
            return Harness, [x]
        case _:
            raise ConfigurationError(
                f"running() takes a Matador, Schema, Queue, Worker, RpcServer, RpcClient, "
                f"Subscriber, Publisher or QueueService, such as running(app), got {x!r}"
            )


class _Reaching(MemoryTransport):
    """Accepts messages for stubs, so that a test can inspect them."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, in_process=False)


def _app_of(schema: Schema) -> Matador:
    subscribers: Sequence[AnySubscriber] = [one for _, some in schema for one in some]
    queues = list(dict.fromkeys(["events", *(one.queue for one in subscribers if one.queue)]))
    stubs = {one.queue or "events" for one in subscribers if isinstance(one, SubscriberStub)}
    return Matador(
        MemoryTransport(),
        schema=schema,
        topology=Topology("test", queues=queues),
        consume_from=[queue for queue in queues if queue not in stubs],
    )
