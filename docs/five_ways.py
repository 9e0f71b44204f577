"""Writes the tables of the page "The five ways in" from the code.

``python docs/five_ways.py`` writes them into the page. A test fails when the page differs. A cell
is "yes" (or the form to write) if the code shows it: by a signature, or by running a small program
with the testing kit. Everything else needs a sentence in ``EXPLAINED``, or the script fails.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from matador import DontRetry, DoRetry, Matador, Schema, event, subscriber
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.channels.settings import QUEUE_TYPES
from matador.cli.receivers import KINDS, find, look_at
from matador.jobs import ActiveJob, JobProvider, Queue, Worker
from matador.pubsub import MessageContext, Publisher, Subscriber
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.runtime.context import Context
from matador.runtime.facts import Attempt
from matador.runtime.health import Health
from matador.runtime.metrics import Metrics
from matador.runtime.service import Service
from matador.testing import Harness, running
from matador.transports import transport_from_url
from matador.transports.base import Replying

PAGE = Path(__file__).parent / "five-ways.md"
BEGIN, END = "<!-- {} -->", "<!-- end of {} -->"

Handle = Callable[[Any, Any], Awaitable[Any]]
"""A handler of any way in: gets the data and the context."""


# -- the ways in ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The payload of the programs."""

    id: str


@event("order.placed", description="An order was placed.")
@dataclass(frozen=True)
class OrderPlaced(Order):
    """The payload of the program with events."""


@dataclass(frozen=True)
class Running:
    """What runs a handler, the service that sends to it, and how a message is sent."""

    receiver: Any
    send: Callable[[Any], Awaitable[Any]]
    also: Sequence[Service] = ()


@dataclass(frozen=True)
class Way:
    """A way in: its classes, where its handlers are declared, and a program with a handler."""

    name: str
    where: str
    """How its address is given."""
    receiver: Any
    sender: Any
    declares: Callable[..., Any]
    context: type[Any]
    program: Callable[[Handle], Running]
    sends: Callable[..., Any]
    """The method that sends."""
    again: tuple[Any, ...]
    """What `ctx.send` takes to send a message to the handler itself."""
    letters: Any = None
    """What has its dead letters; None: the receiver."""
    url_parameter: str = field(default="url")


def _events(handle: Handle) -> Running:
    @subscriber(description="Under test.")
    async def handler(ctx: Context, order: OrderPlaced) -> None:
        await handle(order, ctx)

    app = Matador("memory://", schema=Schema({OrderPlaced: [handler]}), consume_from=["events"])
    return Running(app, lambda order: app.send(OrderPlaced(order.id)))


def _jobs(handle: Handle) -> Running:
    async def handler(job: ActiveJob[Order]) -> None:
        await handle(job.data, job)

    queue = Queue("orders")
    return Running(Worker(queue, handler), lambda order: queue.add("placed", order))


def _rpc(handle: Handle) -> Running:
    server = RpcServer("memory://", queue="orders")

    @server.handler("PLACED")
    async def handler(ctx: RpcContext, order: Order) -> None:
        await handle(order, ctx)

    client = RpcClient("memory://", queue="orders")
    return Running(server, lambda order: client.notify("PLACED", order), [client])


def _pubsub(handle: Handle) -> Running:
    sub = Subscriber("memory://", exchange="shop", queue="orders")

    @sub.on("placed")
    async def handler(ctx: MessageContext, order: Order) -> None:
        await handle(order, ctx)

    publisher = Publisher("memory://", exchange="shop")
    return Running(sub, lambda order: publisher.publish("placed", order), [publisher])


def _channels(handle: Handle) -> Running:
    @channel("orders")
    class Orders:
        @consume("placed")
        async def placed(self, ctx: MessageContext, order: Order) -> None:
            await handle(order, ctx)

    settings = Settings(QueueSettings(type="memory", url="memory://"))
    service = QueueService(settings, channels=[Orders])
    return Running(service, lambda order: service.send("orders", "placed", order))


WAYS = (
    Way(
        "Events",
        "`Matador(URL, schema=…)`",
        Matador,
        Matador,
        subscriber,
        Context,
        _events,
        Matador.send,
        (OrderPlaced("2"),),
        url_parameter="transport",
    ),
    Way(
        "Jobs",
        "`Queue(name, provider=URL)`",
        Worker,
        Queue,
        Queue.job,
        ActiveJob,
        _jobs,
        Queue.add,
        ("placed", Order("2")),
        letters=Queue,
        url_parameter="provider",
    ),
    Way(
        "RPC",
        "`RpcServer(URL, queue=…)`",
        RpcServer,
        RpcClient,
        RpcServer.handler,
        RpcContext,
        _rpc,
        RpcClient.call,
        ("PLACED", Order("2")),
    ),
    Way(
        "Pub/sub",
        "`Subscriber(URL, exchange=…)`",
        Subscriber,
        Publisher,
        Subscriber.on,
        MessageContext,
        _pubsub,
        Publisher.publish,
        ("placed", Order("2")),
    ),
    Way(
        "Channels",
        "`QueueService(Settings(…))`, with the URL in the settings",
        QueueService,
        QueueService,
        consume,
        MessageContext,
        _channels,
        QueueService.send,
        ("orders", "placed", Order("2")),
        url_parameter="settings",
    ),
)


# -- what the code shows --------------------------------------------------------------------------


def options(function: Callable[..., Any]) -> set[str]:
    """The names of all arguments, those of a ``TypedDict`` for keyword arguments included."""
    found: set[str] = set()
    made = function.__init__ if inspect.isclass(function) else function
    for name, parameter in inspect.signature(made).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            hint = get_type_hints(made, include_extras=True).get(name)
            for part in get_args(hint):
                found |= set(get_type_hints(part))
        else:
            found.add(name)
    return found


def has(*names: str) -> Callable[[Way], bool]:
    """The receiver and the sender have these methods."""
    return lambda way: all(
        callable(getattr(cls, name, None)) for cls in (way.receiver, way.sender) for name in names
    )


def takes(option: str, *, sender: bool = False) -> Callable[[Way], bool]:
    """The receiver takes an option; with ``sender``, the sender too."""
    return lambda way: all(
        option in options(cls) for cls in (way.receiver, *([way.sender] if sender else []))
    )


def declares(option: str) -> Callable[[Way], bool]:
    """A handler is declared with an option."""
    return lambda way: option in options(way.declares)


def returns(method: str, kind: type) -> Callable[[Way], bool]:
    """A method of the receiver returns an object of a class, without being awaited."""

    def shown(way: Way) -> bool:
        function = getattr(way.receiver, method)
        hint = get_type_hints(function).get("return")
        return hint is kind and not inspect.iscoroutinefunction(function)

    return shown


def with_context(*names: str) -> Callable[[Way], bool]:
    """The context of a handler has these members."""
    return lambda way: all(_member(way.context, name) for name in names)


def _member(cls: type, name: str) -> bool:
    return hasattr(cls, name) or name in getattr(cls, "__struct_fields__", ())


def commands(*names: str) -> Callable[[Way], bool]:
    """Commands of the command line take what receives: they find it as all others do."""

    def shown(way: Way) -> bool:
        kinds = (way.receiver, *([Queue] if way.receiver is Worker else []))
        modules = [vars(import_module(f"matador.cli.{name}")).values() for name in names]
        return set(kinds) <= set(KINDS) and all(find in one or look_at in one for one in modules)

    return shown


# -- what a program shows -------------------------------------------------------------------------


def run(way: Way, handle: Handle) -> tuple[Harness, Any]:
    """Send one message to a handler, in memory, and have it handled to the end."""

    async def tried() -> tuple[Harness, Any]:
        made = way.program(handle)
        found = running(made.receiver, also=made.also)  # pyright: ignore[reportUnknownVariableType]
        async with cast("AbstractAsyncContextManager[Harness]", found) as harness:
            await made.send(Order("1"))
            await harness.drain()
            return harness, made.receiver

    return asyncio.run(tried())


def attempts(way: Way, handle: Handle) -> list[Attempt]:
    """The attempts to handle one message."""
    return run(way, handle)[0].attempts()


def runs_in_tests(way: Way) -> bool:
    async def handle(order: Any, ctx: Any) -> None: ...

    return [one.outcome for one in attempts(way, handle)] == ["success"]


def takes_by_annotation(way: Way) -> bool:
    """The payload in the type that the handler names, and its context, in any order."""
    found: list[Any] = []

    async def handle(order: Any, ctx: Any) -> None:
        found.extend((order, ctx))

    run(way, handle)
    kinds = [isinstance(found[0], Order), isinstance(found[1], way.context)] if found else [False]
    return all(kinds)


def retries_by_default(way: Way) -> bool:
    async def handle(order: Any, ctx: Any) -> None:
        raise ValueError("broken")

    found = attempts(way, handle)
    pauses = [round(b.started_at - a.started_at) for a, b in pairwise(found)]
    return pauses == [1, 2] and [one.outcome for one in found] == ["retry", "retry", "dead-letter"]


def minds_dont_retry(way: Way) -> bool:
    async def handle(order: Any, ctx: Any) -> None:
        raise DontRetry("no point")

    return [one.outcome for one in attempts(way, handle)] == ["dead-letter"]


def minds_do_retry(way: Way) -> bool:
    async def handle(order: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise DoRetry("busy", delay=60)

    found = attempts(way, handle)
    return len(found) == 2 and round(found[1].started_at - found[0].started_at) == 60


def sends_from_handlers(way: Way) -> bool:
    seen: list[str] = []

    async def handle(order: Any, ctx: Any) -> None:
        seen.append(order.id)
        if order.id == "1":
            await ctx.send(*way.again)

    run(way, handle)
    return seen == ["1", "2"]


def keeps_dead_letters(way: Way) -> bool:
    async def handle(order: Any, ctx: Any) -> None:
        raise DontRetry("no point")

    harness, _ = run(way, handle)
    return [letter.reason for letter in harness.dead_letters()] == ["no point"]


def offers_dead_letters(way: Way) -> bool:
    found = inspect.getattr_static(way.letters or way.receiver, "dead_letters", None)
    if not isinstance(found, property) or found.fget is None:
        return False
    kind = get_type_hints(found.fget).get("return")
    return all(hasattr(kind, name) for name in ("browse", "count", "redrive", "purge"))


# -- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A feature: its name, whether a way in shows it, and what the cell says then."""

    name: str
    shown: Callable[[Way], bool]
    says: str | Callable[[Way], str] = "yes"


def _kept(way: Way) -> str:
    if way.name != "Pub/sub":
        return "yes"
    return "yes with `queue=`; without it, the queue is temporary and ends with its subscriber"


ROWS = (
    Row(
        "where messages live: a URL or a transport object",
        lambda way: way.url_parameter in options(way.receiver),
        lambda way: way.where,
    ),
    Row("`async with x`, `start()`, `shutdown(timeout)`", has("__aenter__", "start", "shutdown")),
    Row("`run()` until a signal", has("run")),
    Row("`pause()`, `resume()`", has("pause", "resume")),
    Row("`concurrency=`", takes("concurrency")),
    Row("`timeout=` for a handler", lambda way: takes("timeout")(way) or declares("timeout")(way)),
    Row("`hooks=[…]`", takes("hooks", sender=True)),
    Row("`retry=`", takes("retry")),
    Row("three attempts by default, after 1 and 2 s", retries_by_default),
    Row("`DontRetry`", minds_dont_retry),
    Row("`DoRetry(…, delay=60)`", minds_do_retry),
    Row("`idempotent=`", declares("idempotent")),
    Row(
        "stored steps: `checkpoints=`, `ctx.io`, `ctx.all`",
        lambda way: takes("checkpoints")(way) and with_context("io", "all")(way),
    ),
    Row("`deduplication=`", takes("deduplication")),
    Row('`delivery="at-most-once"`', takes("delivery")),
    Row("a handler gets its payload type and a context, by annotation", takes_by_annotation),
    Row(
        "the context: `id`, `attempt`, `headers`, `metadata`, `correlation_id`, `deadline`, "
        "`lease_lost`",
        with_context(
            "id", "attempt", "headers", "metadata", "correlation_id", "deadline", "lease_lost"
        ),
    ),
    Row("`ctx.send(…)`", sends_from_handlers),
    Row(
        "`ctx.ack()`, `ctx.nack()` by hand",
        lambda way: with_context("ack", "nack")(way) and takes("ack")(way),
    ),
    Row(
        "a deadline that travels with the message",
        lambda way: bool({"timeout", "ttl"} & options(way.sends)),
        lambda way: {"RPC": "`call(…, timeout=)`"}.get(way.name, "`publish(…, ttl=)`"),
    ),
    Row(
        "handling of messages that cannot be read",
        lambda way: takes("malformed")(way) or takes("validation")(way),
        lambda way: "`malformed=`" if takes("malformed")(way) else "`validation=Validation(…)`",
    ),
    Row("dead letters are kept by default", keeps_dead_letters, _kept),
    Row("`x.dead_letters`: `browse`, `count`, `redrive`, `purge`", offers_dead_letters),
    Row("`health()`", returns("health", Health)),
    Row("`metrics()`", returns("metrics", Metrics)),
    Row("`sync()` for code without an event loop", lambda way: hasattr(way.sender, "sync")),
    Row("`connect_timeout=`", takes("connect_timeout", sender=True)),
    Row("`matador.testing.running(x)`", runs_in_tests),
    Row("`matador worker FILE`", commands("worker")),
    Row("`matador dashboard FILE`", commands("dashboard")),
)

_BY_ITSELF = (
    "acknowledged when the handler returns; `ctx.io` saves work before the end, "
    '`delivery="at-most-once"` acknowledges first'
)

EXPLAINED: dict[tuple[str, str], str] = {
    ("`ctx.send(…)`", "RPC"): "`client.call` or `client.notify` of a client of your own",
    ("`ctx.send(…)`", "Pub/sub"): "`publisher.publish` of a publisher of your own",
    ("`ctx.ack()`, `ctx.nack()` by hand", "Events"): _BY_ITSELF,
    ("`ctx.ack()`, `ctx.nack()` by hand", "Jobs"): _BY_ITSELF,
    ("a deadline that travels with the message", "Events"): "an envelope has no field for it, and "
    "other languages read the same bytes; use `timeout=` of the handler",
    ("a deadline that travels with the message", "Jobs"): "a BullMQ job has no field for it, and "
    "other languages read the same bytes; use `timeout=`",
    ("a deadline that travels with the message", "Channels"): "the deadline of messages from other "
    "programs is respected; `send` sets none, because its queues outlive their senders",
    ("handling of messages that cannot be read", "Jobs"): "always kept as failed jobs, so that "
    "`queue.retry(id)` and dashboards in other languages find them",
}
"""The other cells."""


def cell(row: Row, way: Way) -> str:
    """What the table says of a feature in a way in.

    Raises:
        SystemExit: the code does not show the feature, and nothing explains why.
    """
    if row.shown(way):
        return row.says if isinstance(row.says, str) else row.says(way)
    found = EXPLAINED.get((row.name, way.name))
    if not found:
        raise SystemExit(f"{way.name} has no {row.name}: build it, or say why in EXPLAINED")
    return found


def features() -> str:
    """The table feature × way in, as Markdown."""
    lines = [f"| | {' | '.join(way.name for way in WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    lines += [f"| {row.name} | {' | '.join(cell(row, way) for way in WAYS)} |" for row in ROWS]
    return "\n".join(lines)


# -- brokers --------------------------------------------------------------------------------------

BROKERS = {
    "memory": ("memory://", "memory"),
    "SQLite": ("sqlite:///shop.db", "sqlite"),
    "RabbitMQ": ("amqp://localhost", "rabbitmq"),
    "Redis": ("redis://localhost", "redis"),
    "SQS": ("sqs://eu-west-1", "sqs"),
    "Kafka": ("kafka://localhost", "kafka"),
}
"""The brokers: an address of each, and its type in the settings of a queue service."""


def brokers() -> str:
    """The table broker × way in, as Markdown."""
    lines = [f"| | {' | '.join(way.name for way in WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    for name, (url, kind) in BROKERS.items():
        transport = transport_from_url(url)
        can = transport.capabilities
        jobs = JobProvider(url).capabilities
        lacking = [
            text
            for text, able in {
                "schedules": jobs.schedules,
                "results": jobs.results,
                "states": jobs.find,
            }.items()
            if not able
        ]
        cells = [
            "yes",
            f"without {', '.join(lacking)}" if lacking else "yes",
            "yes" if isinstance(transport, Replying) else "no: it has no queues for replies",
            "yes" if can.routing else "no: it has no exchanges",
            ("yes" if can.routing else "`send`; nothing to `publish` with: it has no exchanges")
            if kind in QUEUE_TYPES
            else "no",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"features": features, "brokers": brokers}


def page_with_tables(page: str) -> str:
    """The page with the tables of today."""
    for name, table in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        start, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{start}{begin}\n{table()}\n{end}{after}"
    return page


if __name__ == "__main__":
    logging.disable()  # the programs fail on purpose
    PAGE.write_text(page_with_tables(PAGE.read_text()))
