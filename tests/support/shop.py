"""A small shop for tests of applications: events, easy subscribers, and what hooks heard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from matador import Envelope, Hooks, JsonCodec, Matador, Schema, Topology, event
from matador.events.context import EventContext
from matador.model.message import StoredMessage
from matador.model.subscriber import AnySubscriber, Subscriber, SubscriberStub
from matador.model.topology import DeadLetterKind
from matador.testing import wait_for
from matador.transports.base import Transport
from matador.transports.clock import SystemClock
from matador.transports.memory import MemoryTransport

QUEUE = "shop.events"
TOPOLOGY = Topology("shop", queues=["events"])


@event("order.placed", description="A customer placed an order.", aliases=["order.created"])
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int = 0


@event("order.paid", description="An order was paid.")
@dataclass(frozen=True)
class OrderPaid:
    order_id: str


@event("order.nobody", description="Nobody listens to this one.")
@dataclass(frozen=True)
class OrderNobody:
    order_id: str


class Handler:
    """A callback that remembers what it was given, and does what it is told."""

    def __init__(
        self, does: Callable[[Envelope[Any], EventContext], Awaitable[Any]] | None = None
    ) -> None:
        self.does = does
        self.envelopes: list[Envelope[Any]] = []
        self.contexts: list[EventContext] = []

    async def __call__(self, envelope: Envelope[Any], ctx: EventContext) -> Any:
        self.envelopes.append(envelope)
        self.contexts.append(ctx)
        return None if self.does is None else await self.does(envelope, ctx)

    @property
    def runs(self) -> int:
        return len(self.envelopes)

    @property
    def data(self) -> list[Any]:
        return [envelope.data for envelope in self.envelopes]


def failing(*errors: BaseException | None) -> Handler:
    """A handler that raises these in turn; None, and when they are used up, it succeeds."""
    left = list(errors)

    async def fail(envelope: Envelope[Any], ctx: EventContext) -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return Handler(fail)


def subscribed(
    callback: Callable[..., Any], name: str = "handle", **options: Any
) -> Subscriber[Any]:
    """A subscriber with this callback; idempotent unless told otherwise."""
    options = {"idempotent": "yes", "description": "Handle it."} | options
    return Subscriber(name=name, callback=callback, **options)


def make_app(
    transport: Transport | str | None,
    *subscribers: AnySubscriber | Callable[..., Any],
    schema: Schema | None = None,
    **options: Any,
) -> Matador:
    """An application whose subscribers all listen to ``OrderPlaced``; it consumes ``events``."""
    made: list[AnySubscriber] = [
        one if isinstance(one, SubscriberStub | Subscriber) else subscribed(one)
        for one in subscribers
    ]
    options = {"topology": TOPOLOGY, "consume_from": ["events"]} | options
    return Matador(
        MemoryTransport() if transport is None else transport,
        schema=schema or Schema({OrderPlaced: made}),
        **options,
    )


class Heard(Hooks):
    """Remembers everything the hooks are told, in order, as pairs of a name and an event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def of(self, name: str) -> list[Any]:
        return [event for known, event in self.events if known == name]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def on_start(self) -> None:
        self.events.append(("start", None))

    def on_stop(self) -> None:
        self.events.append(("stop", None))

    def on_enqueue_success(self, event: Any) -> None:
        self.events.append(("enqueue_success", event))

    def on_enqueue_warning(self, event: Any) -> None:
        self.events.append(("enqueue_warning", event))

    def on_enqueue_error(self, event: Any) -> None:
        self.events.append(("enqueue_error", event))

    def on_transport_fallback(self, event: Any) -> None:
        self.events.append(("fallback", event))

    def on_worker_before_process(self, event: Any) -> None:
        self.events.append(("before", event))

    def on_worker_success(self, event: Any) -> None:
        self.events.append(("success", event))

    def on_worker_error(self, event: Any) -> None:
        self.events.append(("error", event))

    def on_decode_error(self, event: Any) -> None:
        self.events.append(("decode_error", event))

    def on_connection_state_change(self, event: Any) -> None:
        self.events.append(("connection", event))

    def on_checkpoint_loaded(self, event: Any) -> None:
        self.events.append(("loaded", event))

    def on_checkpoint_hit(self, event: Any) -> None:
        self.events.append(("hit", event))

    def on_checkpoint_miss(self, event: Any) -> None:
        self.events.append(("miss", event))

    def on_checkpoint_cleared(self, event: Any) -> None:
        self.events.append(("cleared", event))


def memory(app: Matador) -> MemoryTransport:
    """The transport of an application that runs in memory."""
    assert isinstance(app.transport, MemoryTransport)
    return app.transport


async def settled(app: Matador, *, queue: str = QUEUE, timeout: float = 30.0) -> None:
    """Wait until the queue is empty, delayed messages aside, and nothing is going on."""

    async def quiet() -> bool:
        depth = await memory(app).depth(queue)
        return app.state.is_idle and depth.ready == 0 and depth.in_flight == 0

    await wait_for(quiet, timeout=timeout, message=f"{queue} to be handled")


def dead(app: Matador, kind: DeadLetterKind = "undeliverable") -> list[StoredMessage]:
    """The dead letters of the queue."""
    return memory(app).dead_letters(QUEUE, kind)


def read(stored: StoredMessage) -> Envelope[Any]:
    """A stored message as an envelope, its payload undecoded."""
    return JsonCodec().decode(stored.body, stored.headers, SystemClock())
