"""RPC, pub/sub and channels: options, and several handlers of one message."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from matador import (
    DoRetry,
    Hooks,
    MemoryCheckpointStore,
    Shutdown,
    StandardRetryPolicy,
)
from matador.errors import ConfigurationError
from matador.model.message import Delivery, Properties, Receipt
from matador.pubsub import AckStrategy, MessageContext, Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer
from matador.runtime.facts import Attempt, Sent
from matador.runtime.hooks import Sending
from matador.testing import wait_for
from matador.transports.memory import MemoryTransport


async def test_options_that_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="at-most-once"):
        RpcServer("memory://", queue="q", ack=AckStrategy("manual"), delivery="at-most-once")
    with pytest.raises(ConfigurationError, match="retry policy"):
        Subscriber("memory://", exchange="e", queue="q", retry=3)  # type: ignore[arg-type] - users
    for make in (RpcServer, RpcClient):
        with pytest.raises(ConfigurationError, match="unknown option 'hook'; did you mean 'hooks'"):
            make("memory://", queue="q", hook=())  # type: ignore[call-arg] - users
    with pytest.raises(ConfigurationError, match="unknown option 'delivry'; did you mean 'deliver"):
        RpcServer("memory://", queue="q", delivry="at-most-once")  # type: ignore[call-arg] - users
    server = RpcServer("memory://", queue="q")
    with pytest.raises(ConfigurationError, match="idempotent"):
        server.register("a", lambda: None, idempotent="maybe")  # type: ignore[arg-type] - users


async def test_queues_and_handlers_do_not_share_their_steps() -> None:
    """A published message has the same id in every queue."""
    store, transport = MemoryCheckpointStore(), MemoryTransport()
    ran: list[str] = []
    subs = [Subscriber(transport, exchange="e", queue=queue, checkpoints=store) for queue in "ab"]
    for sub in subs:
        for name in ("first", "second"):

            async def handle(
                data: int, ctx: MessageContext, name: str = f"{sub.queue}-{name}"
            ) -> None:
                await ctx.io("charge", lambda: ran.append(name))
                if ctx.attempt == 1:
                    raise DoRetry("again", delay=0)

            handle.__qualname__ = name
            sub.on("#", idempotent="resumable")(handle)
    async with subs[0], subs[1], Publisher(transport, exchange="e") as publisher:
        await publisher.publish("a", 1)
        await wait_for(lambda: all(sub.metrics().messages_succeeded == 1 for sub in subs))
    assert sorted(ran) == ["a-first", "a-second", "b-first", "b-second"]
    assert len(store) == 0


async def test_several_handlers_are_idempotent_each_for_itself() -> None:
    sub = Subscriber("memory://", exchange="e", queue=f"q-{uuid4().hex[:6]}")
    ran: list[str] = []

    @sub.on("#")
    async def again(data: dict[str, int]) -> None:
        ran.append("again")

    @sub.on("#", idempotent="no")
    async def once(data: dict[str, int]) -> None:
        ran.append("once")

    async with sub:
        handler: Any = sub._workers[0].consumers[0]._handler
        receipt = Receipt(sub.queue, None, delivery_count=2, redelivered=True)
        outcome = await handler.process(
            Delivery(b'{"n": 1}', {}, receipt, properties=Properties(routing_key="a"))
        )
    assert ran == ["again"]
    assert "not idempotent" in outcome.settlement.reason
    assert outcome.settlement.message.headers["x-matador-failed-handlers"].endswith("once")


@pytest.mark.parametrize("sync", [False, True])
async def test_several_handlers_that_were_cut_short_are_not_all_run_again(sync: bool) -> None:
    """One is finished, or runs in a thread that goes on: a release would run it a second time."""
    transport, begun, end = MemoryTransport(), asyncio.Event(), threading.Event()
    ran: list[str] = []
    sub = Subscriber(transport, exchange="e", queue="q", shutdown=Shutdown(0, grace=0.1))

    @sub.on("#")
    async def slow(data: int) -> None:
        ran.append("slow")
        begun.set()
        if ran.count("slow") == 1:
            await asyncio.Event().wait()

    if sync:

        @sub.on("#")
        def in_thread(data: int) -> None:
            ran.append("in_thread")
            end.wait(30)

    else:

        @sub.on("#", idempotent="no")
        async def once(data: int) -> None:
            ran.append("once")

    async with Publisher(transport, exchange="e") as publisher:
        await sub.start()
        await publisher.publish("a", 1)
        await begun.wait()
        await wait_for(lambda: len(ran) == 2)
        await sub.shutdown()
        assert (await transport.depth("q")).ready == 0, "held until the connection is closed"
        end.set()
        await transport.disconnect()
        await transport.connect()
        async with sub:
            await wait_for(lambda: ran.count("slow") == 2)
            await sub.wait_idle(10)
    assert ran.count("once") == (0 if sync else 1)


class Away(MemoryCheckpointStore):
    """Cannot save for a while."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        if self.left:
            self.left -= 1
            raise OSError("the store is away")
        await super().save(envelope_id, step, value)


async def test_a_handler_that_waits_for_its_store_costs_no_attempt_and_repeats_no_sibling() -> None:
    store, transport = Away(4), MemoryTransport()
    policy = StandardRetryPolicy(max_attempts=1)
    sub = Subscriber(
        transport, exchange="e", queue="q", checkpoints=store, timeout=0.2, retry=policy
    )
    ran: list[str] = []

    @sub.on("#", idempotent="resumable")
    async def charge(data: int, ctx: MessageContext) -> None:
        await ctx.io("charge", lambda: ran.append("step"))
        ran.append("charge")

    @sub.on("#", idempotent="no")
    async def note(data: int) -> None:
        ran.append("note")

    async with sub, Publisher(transport, exchange="e") as publisher:
        await publisher.publish("a", 1)
        await wait_for(lambda: sub.metrics().messages_succeeded == 1)
        assert sub.metrics().messages_failed == 0
    assert sorted(ran) == ["charge", "note", "step"]
    assert store.left == 0


class Seen(Hooks):
    """Notes what it is told, and adds metadata."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.attempts: list[Attempt] = []
        self.sending: list[Sending] = []

    def load_universal_metadata(self) -> dict[str, Any]:
        return {"region": "eu", "tags": ["a", "b"]}

    def on_send_enter(self, event: Sending) -> None:
        self.sending.append(event)
        event.metadata["traceparent"] = "00-1"

    def on_sent(self, batch: Any) -> None:
        self.sent += batch

    def on_attempted(self, batch: Any) -> None:
        self.attempts += batch


async def test_the_senders_metadata_override_those_of_hooks() -> None:
    seen, transport = Seen(), MemoryTransport()
    async with Publisher(transport, exchange="e", hooks=seen) as publisher:
        await publisher.publish_many([("a", 1), ("b", 2), ("a", 3)], metadata={"region": "us"})
    assert [one.metadata["region"] for one in seen.sent if one.metadata] == ["us"] * 3
    assert (seen.sending[0].names, seen.sending[0].count) == (("a", "b"), 3)


class Loads(Hooks):
    """Has metadata for every message."""

    def load_universal_metadata(self) -> dict[str, Any]:
        return {"region": "eu"}


class Adds(Hooks):
    """Adds metadata to a send."""

    def on_send_enter(self, event: Sending) -> None:
        event.metadata["region"] = event.metadata.get("region", "") + "us"


@pytest.mark.parametrize(
    ("hooks", "own", "region"),
    [
        ([], None, None),
        ([Loads()], None, "eu"),
        ([Adds()], None, "us"),
        ([Loads(), Adds()], None, "us"),
        ([Loads()], "own", "own"),
        ([Adds()], "own", "own"),
        ([Loads(), Adds()], "own", "own"),
    ],
)
async def test_whose_metadata_travel_with_a_message(
    hooks: list[Hooks], own: str | None, region: str | None
) -> None:
    seen, transport = Told(), MemoryTransport()
    metadata = None if own is None else {"region": own}
    async with Publisher(transport, exchange="e", hooks=[*hooks, seen]) as publisher:
        await publisher.publish("a", 1, metadata=metadata)
    (sent,) = seen.sent
    assert (sent.metadata or {}).get("region") == region


class Told(Hooks):
    """Notes what was sent."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def on_sent(self, batch: Any) -> None:
        self.sent += batch
