"""Handlers by annotation: the payload, the envelope where there is one, and a context, in any
order. The same reader for every way in.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.ways.ways import Facts, Thing

from matador import (
    Context,
    Envelope,
    Matador,
    MemoryCheckpointStore,
    Schema,
    event,
    subscriber,
)
from matador.channels import MessageContext as ChannelContext
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import ConfigurationError, InvalidSchemaError
from matador.pubsub import MessageContext, Publisher, Subscriber
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.runtime.service import Service
from matador.testing import wait_for

WAYS = ("events", "rpc", "pubsub", "channels")
SPECIAL: dict[str, type[Context]] = {
    "events": Context,
    "rpc": RpcContext,
    "pubsub": MessageContext,
    "channels": ChannelContext,
}
Paid = event("order.paid", description="It was paid.")(type("Paid", (Thing,), {}))
Happened = event("thing.happened", description="It did.")(Thing)


def running(kind: str, function: Any, **options: Any) -> tuple[Any, Service, Callable[[], Any]]:
    """A receiver with a handler, what sends a ``Thing`` to it, and how."""
    receiver: Any = None
    url = f"memory://?name={id(function)}-{kind}"
    handler: Any = {"idempotent": options.pop("idempotent", "yes")}
    match kind:
        case "events":
            heard = subscriber(description="Hear.", name="heard", **handler)(function)
            schema = Schema({Happened: [heard]})
            receiver = Matador(url, schema=schema, consume_from=["events"], **options)
            receiver.check()
            return receiver, receiver, lambda: receiver.send(Thing(1), correlation_id="c")
        case "rpc":
            receiver = RpcServer(url, queue="q", **options)
            receiver.handler("DO", **handler)(function)
            caller = RpcClient(url, queue="q")
            return receiver, caller, lambda: caller.notify("DO", Thing(1), correlation_id="c")
        case "pubsub":
            receiver = Subscriber(url, exchange="e", queue="q", **options)
            receiver.on("#", **handler)(function)
            sender = Publisher(url, exchange="e")
            return receiver, sender, lambda: sender.publish("k", Thing(1), correlation_id="c")
        case _:
            body = {"happened": staticmethod(consume("happened", **handler)(function))}
            settings = Settings(QueueSettings(type="memory", url=url))
            things = channel("things")(type("Things", (), body))
            receiver = QueueService(settings, channels=[things], **options)
            send = functools.partial(receiver.send, "things", "happened", Thing(1))
            return receiver, receiver, lambda: send(correlation_id="c")


SEEN: list[dict[str, Any]] = []


def see(**given: Any) -> None:
    SEEN.append(given)


async def payload(thing: Thing) -> None:
    see(thing=thing)


async def context_first(ctx: Context, thing: Thing) -> None:
    see(ctx=ctx, thing=thing)


async def context_last(thing: Thing, ctx: Context) -> None:
    see(ctx=ctx, thing=thing)


async def by_name(*, ctx: Context, thing: Thing) -> None:
    see(ctx=ctx, thing=thing)


async def with_defaults(thing: Thing, retries: int = 3, ctx: Context | None = None) -> None:
    assert retries == 3
    see(ctx=ctx, thing=thing)


async def context_alone(ctx: Context) -> None:
    see(ctx=ctx)


async def envelope_last(ctx: Context, envelope: Envelope[Thing]) -> None:
    see(ctx=ctx, thing=envelope.data)


async def both(envelope: Envelope[Thing], thing: Thing) -> None:
    assert envelope.data is thing
    see(thing=thing)


def blocking(ctx: Context, thing: Thing) -> None:
    see(ctx=ctx, thing=thing)


async def untyped(thing: Any, ctx: Any) -> None:
    see(ctx=ctx)


class Object:
    async def __call__(self, ctx: Context, thing: Thing) -> None:
        see(ctx=ctx, thing=thing)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    "function",
    [
        payload,
        context_first,
        context_last,
        by_name,
        with_defaults,
        context_alone,
        envelope_last,
        both,
        blocking,
        Object(),
        functools.partial(context_last),
        untyped,
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
async def test_parameters_are_filled_by_their_types(kind: str, function: Any) -> None:
    said = "have no envelope; take the data" if function is envelope_last else "nothing fills"
    if function in (envelope_last, both) and kind in ("rpc", "pubsub"):
        with pytest.raises(ConfigurationError, match=rf"{said}.*py:\d"):
            running(kind, function)
        return
    if isinstance(function, Object | functools.partial) and kind == "channels":
        return  # consumers are methods
    receiver, sender, send = running(kind, function)
    async with receiver, sender:
        await send()
        await wait_for(lambda: SEEN)
    (seen,) = SEEN
    if "thing" in seen:
        assert seen["thing"] == Thing(1)
        assert type(seen["thing"]) is Thing
    if "ctx" in seen:
        ctx = seen["ctx"]
        assert isinstance(ctx, SPECIAL[kind])
        assert (ctx.attempt, ctx.correlation_id, ctx.lease_lost) == (1, "c", False)
        assert ctx.id
        assert ctx.deadline is None
        assert dict(ctx.metadata) == {}
        assert not [one for one in ctx.headers if not one.startswith("x-")]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_every_context_has_steps_that_are_remembered(kind: str, sync: bool) -> None:
    ran: list[str] = []
    facts = Facts()

    async def handle(thing: Thing, ctx: Context) -> None:
        await ctx.io("one", lambda: ran.append("one"))
        await ctx.all([("two", lambda: ran.append("two")), ("three", lambda: ran.append("three"))])
        if ctx.attempt == 1:
            raise ValueError("once more")

    def blocks(thing: Thing, ctx: Context) -> None:
        ctx.io("one", lambda: ran.append("one"))
        ctx.all([("two", lambda: ran.append("two")), ("three", lambda: ran.append("three"))])
        if ctx.attempt == 1:
            raise ValueError("once more")

    receiver, sender, send = running(
        kind,
        blocks if sync else handle,
        idempotent="resumable",
        checkpoints=MemoryCheckpointStore(),
        hooks=facts,
    )
    async with receiver, sender:
        await send()
        await wait_for(lambda: facts.outcomes(1) == ["retry", "success"])
    assert sorted(ran) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("kind", "arguments", "instead"),
    [
        ("events", (Thing(2),), None),
        ("channels", ("things", "happened", Thing(2)), None),
        ("rpc", (Thing(2),), "open an RpcClient beside the server"),
        ("pubsub", (Thing(2),), "open a Publisher beside the subscriber"),
    ],
)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_handler_sends_with_the_correlation_id_of_its_message(
    kind: str, arguments: Any, instead: str | None, sync: bool
) -> None:
    errors: list[Exception] = []

    async def handle(thing: Thing, ctx: Context) -> None:
        see(n=thing.n, correlation_id=ctx.correlation_id)
        if thing.n == 1:
            try:
                await ctx.send(*arguments)
            except ConfigurationError as error:
                errors.append(error)

    def blocks(thing: Thing, ctx: Context) -> None:
        see(n=thing.n, correlation_id=ctx.correlation_id)
        if thing.n == 1:
            try:
                ctx.send(*arguments)
            except ConfigurationError as error:
                errors.append(error)

    receiver, sender, send = running(kind, blocks if sync else handle)
    async with receiver, sender:
        await send()
        if instead is None:
            await wait_for(lambda: len(SEEN) == 2)
            assert SEEN[1] == {"n": 2, "correlation_id": "c"}
        else:
            await wait_for(lambda: errors)
            assert instead in str(errors[0])


async def two(thing: Thing, more: int) -> None: ...
async def three(thing: Thing, ctx: Context, more: Any) -> None: ...
async def wrong_context(thing: Thing, ctx: RpcContext) -> None: ...
async def message_context(thing: Thing, ctx: MessageContext) -> None: ...
async def yields(thing: Thing) -> Any:
    yield thing


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (two, "nothing fills the parameter 'more'"),
        (three, "nothing fills the parameter 'more'"),
        (yields, "has a `yield`"),
    ],
)
async def test_wrong_parameters_are_refused_with_their_place(
    kind: str, function: Any, said: str
) -> None:
    line = function.__code__.co_firstlineno
    with pytest.raises(ConfigurationError) as caught:
        running(kind, function)
    assert said in str(caught.value)
    assert f"({__file__}:{line})" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "function", "name"),
    [
        ("events", wrong_context, "RpcContext"),
        ("events", message_context, "MessageContext"),
        ("pubsub", wrong_context, "RpcContext"),
        ("channels", wrong_context, "RpcContext"),
        ("rpc", message_context, "MessageContext"),
    ],
)
def test_the_context_of_another_way_in_is_refused(kind: str, function: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"takes {name}, which is the context of.*py:\d"):
        running(kind, function)


async def paid(paid: Paid) -> None: ...
async def paid_envelope(envelope: Envelope[Paid]) -> None: ...
async def a_text(text: str) -> None: ...
async def one_of_two(thing: Thing | Paid) -> None: ...
async def a_thing(thing: Thing) -> None: ...
async def anything(thing: Any) -> None: ...


def test_a_payload_of_another_event_is_found_by_the_schema() -> None:
    for function, said in (
        (paid, r"takes Paid, not Thing \("),
        (paid_envelope, r"takes Envelope\[Paid\], not Envelope\[Thing\]"),
        (a_text, "takes str, not Thing"),
    ):
        heard = subscriber(description="x")(function)
        with pytest.raises(InvalidSchemaError, match=said):
            Schema({Happened: [heard]}).check()
    # One for two events, of which both payloads are a Thing.
    fine = [
        subscriber(description="x", name=one.__name__)(one)
        for one in (a_thing, one_of_two, anything)
    ]
    Schema({Happened: fine, Paid: fine}).check()
    assert [one.is_bare for one in fine] == [True, True, False]
    assert fine[2].is_plain


async def test_a_subscriber_of_the_payload_alone_is_one_direct_call() -> None:
    callers: list[str] = []

    @subscriber(description="Hear.")
    async def heard(thing: Thing) -> None:
        frame = sys._getframe(1)
        callers.append(frame.f_code.co_filename)

    app = Matador("memory://", schema=Schema({Happened: [heard]}), consume_from=["events"])
    async with app:
        await app.send(Thing(1))
        await wait_for(lambda: callers)
    assert heard.is_bare
    assert callers[0].endswith("runtime/pipeline.py"), "nothing of the way in is between"
