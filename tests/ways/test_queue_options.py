"""Options of the main queue: what RPC, pub/sub and channels say about it, a broker honours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.ways.places import Place, place_on

from matador import WorkQueue
from matador.channels import QueueService, QueueSettings, Settings, consume
from matador.errors import ConfigurationError
from matador.model.topology import DeadLetters
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.service import Service
from matador.testing import wait_for

WAYS = ("rpc", "pubsub", "channels")
TRANSPORTS = (
    "memory",
    "sqlite",
    pytest.param("redis", marks=pytest.mark.broker),
    pytest.param("rabbitmq", marks=pytest.mark.broker),
)


@dataclass
class Pair:
    """A receiver that is not started, a started sender, and what was handled."""

    receiver: Service
    send: Callable[[int, int | None], Awaitable[Any]]
    queue: str
    seen: list[int] = field(default_factory=list[int])


Make = Callable[..., Awaitable[Pair]]


@pytest_asyncio.fixture(params=TRANSPORTS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_on(request.param, tmp_path) as found:
        yield found


@pytest_asyncio.fixture
async def make(place: Place) -> AsyncIterator[Make]:
    """Make a pair of a way in whose queue has these options."""
    async with AsyncExitStack() as stack:

        async def entered(service: Any) -> Any:
            await stack.enter_async_context(service)
            place.used.add(service._connection.transport)
            return service

        async def made(way: str, **options: Any) -> Pair:
            url, tag = place.url(), place.tag
            seen: list[int] = []

            def note(n: int) -> None:
                seen.append(n)

            if way == "rpc":
                queue = WorkQueue(f"{tag}-calls", **options)
                server = RpcServer(url, queue=queue, concurrency=1)
                server.register("NOTE", note)
                client = await entered(RpcClient(url, queue=queue.name))
                notify = client.notify
                return Pair(server, lambda n, p: notify("NOTE", n, priority=p), queue.name, seen)
            if way == "pubsub":
                queue = WorkQueue(f"{tag}-things", **options)
                sub = Subscriber(url, exchange=f"{tag}-x", queue=queue, concurrency=1)
                sub.on("thing.*")(note)
                publisher = await entered(Publisher(url, exchange=f"{tag}-x"))
                publish = publisher.publish
                return Pair(sub, lambda n, p: publish("thing.a", n, priority=p), queue.name, seen)
            kind = {"memory": "memory", "sqlite": "sqlite", "redis": "redis"}.get(
                place.transport, "rabbitmq"
            )
            mode = {"mode": "stream"} if kind == "redis" else {}
            settings = Settings(QueueSettings(type=kind, url=url, **mode))  # type: ignore[arg-type]
            consume("things", channel=tag, queue=WorkQueue("things", **options))(note)
            service = QueueService(settings, channels=[note])
            sender = await entered(QueueService(settings))
            return Pair(
                service,
                lambda n, p: sender.send(tag, "things", n, priority=p),
                f"{tag}.things",
                seen,
            )

        yield made


async def started_paused(pair: Pair, place: Place, stack: AsyncExitStack) -> None:
    await pair.receiver.pause()
    await stack.enter_async_context(pair.receiver)
    place.used.add(pair.receiver.transport)


@pytest.mark.parametrize("over", WAYS)
async def test_of_too_many_messages_the_oldest_go(make: Make, place: Place, over: str) -> None:
    pair = await make(over, max_length=3)
    async with AsyncExitStack() as stack:
        await started_paused(pair, place, stack)
        for n in range(5):
            await pair.send(n, None)
        await pair.receiver.resume()
        await wait_for(lambda: 4 in pair.seen, timeout=60)
    assert pair.seen == [2, 3, 4]


@pytest.mark.parametrize("over", WAYS)
async def test_a_message_that_waited_too_long_goes(make: Make, place: Place, over: str) -> None:
    pair = await make(over, message_ttl=0.3)
    async with AsyncExitStack() as stack:
        await started_paused(pair, place, stack)
        await pair.send(1, None)
        transport: Any = pair.receiver.transport

        async def is_empty() -> bool:
            return (await transport.depth(pair.queue)).ready == 0

        await wait_for(is_empty, timeout=60)
        await pair.receiver.resume()
        await wait_for(lambda: pair.receiver.is_paused is False)
        await pair.send(2, None)
        await wait_for(lambda: pair.seen, timeout=60)
    assert pair.seen == [2]


@pytest.mark.parametrize("over", WAYS)
async def test_higher_priorities_come_first(make: Make, place: Place, over: str) -> None:
    pair = await make(over, priorities=True)
    async with AsyncExitStack() as stack:
        await started_paused(pair, place, stack)
        for n, priority in ((1, None), (2, 1), (3, 9)):
            await pair.send(n, priority)
        await pair.receiver.resume()
        await wait_for(lambda: len(pair.seen) == 3, timeout=60)
    assert pair.seen == [3, 2, 1]


def note(n: int) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "non-empty text or a WorkQueue"),
        ({"queue": WorkQueue("a", concurrency=2), "concurrency": 3}, "give one of them"),
        ({"queue": WorkQueue("a", dead_letters=DeadLetters())}, "dead_letters= beside the queue"),
    ],
)
def test_mistakes(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        RpcServer("memory://", **options)
    with pytest.raises(ConfigurationError, match=text):
        Subscriber("memory://", exchange="events", **options)


def test_the_queue_says_its_concurrency_and_its_timeout() -> None:
    queue = WorkQueue("maths", concurrency=7, consumer_timeout=5)
    server = RpcServer("memory://", queue=queue)
    server.register("ADD", note)
    assert [one.concurrency for one in server.topology.queues] == [7]
    assert server._commands["ADD"].timeout == 5
    assert RpcServer("memory://", queue="maths").topology.queues[0].concurrency == 100


def test_limits_and_their_limits() -> None:
    with pytest.raises(ConfigurationError, match="its owner creates"):
        WorkQueue("theirs", exact=True, max_length=5)
    with pytest.raises(ConfigurationError, match="cannot have a retention"):
        WorkQueue("kept", retention=60, message_ttl=5)
