"""Typical mistakes, in every way in: the error names the argument and shows what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from matador import Envelope, Hooks, Matador, Schema, Topology, WorkQueue, event, subscriber
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import ConfigurationError, InvalidMessageError, MatadorError
from matador.events.config import AppOptions
from matador.jobs import Queue, Worker
from matador.pubsub import AckStrategy, Deduplication, Publisher, Subscriber
from matador.rpc import RpcClient, RpcServer

MEMORY = "memory://"
SECRET = "redis://me:s3cret@localhost"


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@subscriber(description="Email the receipt.", idempotent="yes")
async def email(envelope: Envelope[OrderPlaced]) -> None: ...


@channel("orders")
class Orders:
    @consume("created")
    async def created(self, order: OrderPlaced) -> None: ...

    @consume("anything")
    async def anything(self, data: Any) -> None: ...


class Misspelt(Hooks):
    def on_worker_sucess(self, event: Any) -> None: ...


SCHEMA = Schema({OrderPlaced: [email]})
SETTINGS = Settings(QueueSettings(type="memory", url=MEMORY))
WAYS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "Matador": (Matador, (MEMORY,), {"schema": SCHEMA}),
    "Queue": (Queue, ("emails",), {}),
    "Worker": (Worker, ("emails", print), {}),
    "RpcServer": (RpcServer, (MEMORY,), {"queue": "maths"}),
    "RpcClient": (RpcClient, (MEMORY,), {"queue": "maths"}),
    "Publisher": (Publisher, (MEMORY,), {}),
    "Subscriber": (Subscriber, (MEMORY,), {"exchange": "events", "queue": "all"}),
    "QueueService": (QueueService, (SETTINGS,), {}),
}


def make(name: str, **given: Any) -> Any:
    kind, arguments, options = WAYS[name]
    return kind(*arguments, **{**options, **given})


RECEIVERS = ["Matador", "Worker", "RpcServer", "Subscriber", "QueueService"]
MESSAGES = ["RpcServer", "Subscriber", "QueueService"]

WRONG: list[tuple[list[str], dict[str, Any], str]] = [
    ([*WAYS], {"hooks": {"on_start": print}}, "hooks=[Journal('journal/')]"),
    ([*WAYS], {"hooks": print}, "a subclass of Hooks"),
    ([*WAYS], {"hooks": [Misspelt]}, "hooks=[Misspelt()]"),
    ([*WAYS], {"hooks": Misspelt()}, "did you mean 'on_worker_success'?"),
    (RECEIVERS, {"retry": 5}, "retry=StandardRetryPolicy(max_attempts=5)"),
    (["RpcClient"], {"retry": 3}, "retry=CallRetry(attempts=3)"),
    (RECEIVERS, {"checkpoints": SECRET}, "checkpoints=RedisCheckpointStore('redis://localhost')"),
    (RECEIVERS, {"checkpoints": "sqlite:///x"}, "checkpoints=SqliteCheckpointStore('steps.db')"),
    (RECEIVERS, {"deduplication": 60}, "deduplication=Deduplication(ttl=60)"),
    (["Matador"], {"codec": "json"}, "codec=JsonCodec()"),
    (["Matador"], {"topology": "billing"}, "topology=Topology('billing', queues=['events'])"),
    (["Matador"], {"topology": Topology}, "topology=Topology(…)"),
    (["Matador"], {"schema": {}}, "schema=Schema({OrderPlaced: [email_receipt]})"),
    (MESSAGES, {"ack": "manual"}, "ack=AckStrategy(mode='manual')"),
    (MESSAGES, {"ack": AckStrategy}, "ack=AckStrategy(…)"),
    (MESSAGES, {"validation": 1000}, "validation=Validation(max_size=1000)"),
    ([*MESSAGES, "Publisher", "RpcClient"], {"recovery": True}, "recovery=Recovery(buffer=True)"),
    (
        ["RpcClient", "Publisher", "QueueService"],
        {"circuit_breaker": 5},
        "circuit_breaker=CircuitBreaker(threshold=5)",
    ),
]


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [
        pytest.param(way, given, right, id=f"{way}-{right}")
        for ways, given, right in WRONG
        for way in ways
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_at_once(
    name: str, given: dict[str, Any], right: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(name, **given)
    assert right in str(caught.value)
    assert name in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_store_of_duplicates_is_no_url() -> None:
    with pytest.raises(ConfigurationError, match="store=RedisDuplicateStore") as caught:
        Deduplication(store=SECRET)  # pyright: ignore[reportArgumentType] - the error tested
    assert "s3cret" not in str(caught.value)


def test_a_time_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"consumer_timeout must be at least 0\.001"):
        WorkQueue("events", consumer_timeout=0)


def test_the_options_that_can_be_changed_are_those_of_the_application() -> None:
    known = set(inspect.signature(Matador).parameters)
    assert set(get_type_hints(AppOptions)) == known
    with pytest.raises(ConfigurationError, match="did you mean 'transport'"):
        make("Matador").with_(transprot=MEMORY)


# -- sends ----------------------------------------------------------------------------------------

TOO_LONG = 1e12
THING = object()
Send = Callable[[Any], Coroutine[Any, Any, Any]]
ORDER = OrderPlaced("1")
SENDS: list[tuple[str, Send, str]] = [
    ("Matador", lambda app: app.send(ORDER, delay=TOO_LONG), "delay must be at most"),
    ("Matador", lambda app: app.send(ORDER, before=3), "before: Expected `object`, got `int`"),
    ("Matador", lambda app: app.send(ORDER, before={"order_id": 3}), "before: .*order_id"),
    ("Matador", lambda app: app.send(ORDER, metadata={"user": THING}), r"metadata\['user'\]"),
    ("Matador", lambda app: app.send(ORDER, metadata="x"), "metadata must be a mapping"),
    ("Matador", lambda app: app.send(ORDER, correlation_id=3), "correlation_id must be"),
    ("Queue", lambda queue: queue.add("any", delay=TOO_LONG), "add: delay must be at most"),
    ("Queue", lambda queue: queue.add("any", metadata={"user": THING}), r"metadata\['user'\]"),
    ("Queue", lambda queue: queue.add("any", metadata="x"), "metadata must be a mapping"),
    ("Queue", lambda queue: queue.add("any", dely=3), "unknown option 'dely'"),
    ("RpcClient", lambda client: client.call("A", timeout=TOO_LONG), "timeout must be at most"),
    ("RpcClient", lambda client: client.call("A", metadata={"user": THING}), "metadata 'user'"),
    ("RpcClient", lambda client: client.call("A", metadata="x"), "metadata must be a mapping"),
    ("RpcClient", lambda client: client.call("A", correlation_id=3), "correlation_id must be"),
    ("RpcClient", lambda client: client.notify("A", message_id=3), "message_id must be"),
    ("Publisher", lambda one: one.publish("a", 1, ttl=TOO_LONG), "ttl must be at most"),
    ("Publisher", lambda one: one.publish("a", 1, metadata={"user": THING}), "metadata 'user'"),
    ("Publisher", lambda one: one.publish("a", 1, metadata="x"), "metadata must be a mapping"),
    ("Publisher", lambda one: one.publish("a", 1, correlation_id=3), "correlation_id must be"),
    ("Publisher", lambda one: one.publish("a", 1, priority="high"), "priority must be"),
    ("QueueService", lambda s: s.send("o", "a", 1, delay=TOO_LONG), "delay must be at most"),
    ("QueueService", lambda s: s.send("o", "a", 1, headers={"user": THING}), "metadata 'user'"),
    ("QueueService", lambda s: s.send("o", "a", 1, message_id=3), "message_id must be"),
]


@pytest.mark.parametrize(("name", "send", "right"), SENDS)
async def test_a_send_names_the_argument_and_the_key(name: str, send: Send, right: str) -> None:
    async with make(name) as sender:
        with pytest.raises(MatadorError, match=right):
            await send(sender)


@pytest.mark.parametrize("operation", ["send", "publish"])
async def test_a_message_to_a_channel_that_is_declared_here_must_be_consumed(
    operation: str,
) -> None:
    async with QueueService(SETTINGS, channels=[Orders]) as service:
        send = getattr(service, operation)
        wanted = "no consumer 'creatd', only .*did you mean 'created'"
        with pytest.raises(ConfigurationError, match=wanted):
            await send("orders", "creatd", ORDER)
        with pytest.raises(InvalidMessageError, match=re.escape("`order_id`")):
            await send("orders", "created", {"id": 1})
        assert await send("orders", "created", {"order_id": "1"})
        assert await send("orders", "anything", {"id": 1})
        assert await send("payments", "creatd", {"id": 1})  # of another service
        assert await service.wait_idle(5)
        assert service.metrics().messages_failed == 0
    async with QueueService(SETTINGS) as elsewhere:  # declares nothing, so nothing is known
        assert await getattr(elsewhere, operation)("orders", "creatd", {"id": 1})
