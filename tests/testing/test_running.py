"""``running`` for every way in: the object itself, in memory, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_type, cast

import pytest
from tests.support.shop import OrderPlaced

from matador import (
    DoRetry,
    Envelope,
    Hooks,
    Matador,
    MemoryCheckpointStore,
    Schema,
    StandardRetryPolicy,
    Topology,
    WorkQueue,
    subscriber,
)
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import (
    ConfigurationError,
    LifecycleError,
    RemoteError,
    RpcTimeoutError,
    WrongLoopError,
)
from matador.jobs import ActiveJob, Exponential, Queue, RateLimit, Worker
from matador.policy.dedup import Deduplication
from matador.pubsub import AckStrategy, MessageContext, Publisher, Subscriber
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.runtime.context import Context
from matador.runtime.service import Service
from matador.testing import (
    ChannelHarness,
    Harness,
    JobHarness,
    ManualClock,
    PubSubHarness,
    RpcHarness,
    running,
    wait_for,
)
from matador.transports.memory import MemoryTransport

NOWHERE = "redis://127.0.0.1:1/9"  # nothing listens: a test that connects there fails

Handle: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""A handler of any way in: gets the data and its context."""


@dataclass
class Case:
    """A way in: what is under test, how a message is sent, and how it is called."""

    x: Any
    send: Callable[[Any], Awaitable[Any]]
    of: str
    queue: str


RETRY = StandardRetryPolicy(max_attempts=3)


def an_app(handle: Handle, **options: Any) -> Case:
    queue = WorkQueue("events", consumer_timeout=options.pop("timeout", None))

    @subscriber(description="Under test.", idempotent="resumable")
    async def handler(envelope: Envelope[OrderPlaced], ctx: Context) -> Any:
        return await handle(envelope.data.order_id, ctx)

    app = Matador(
        NOWHERE,
        schema=Schema({OrderPlaced: [handler]}),
        topology=Topology("matador", queues=[queue]),
        consume_from=["events"],
        **options,
    )
    return Case(app, lambda one: app.send(OrderPlaced(one)), "handler", "matador.events")


def declared_jobs(handle: Handle, **options: Any) -> Case:
    queue = Queue("emails", provider=NOWHERE)

    async def run(job: ActiveJob[Any]) -> Any:
        return await handle(job.data, job)

    options = {"idempotent": "resumable", **options}
    worker = Worker(queue, {"welcome": run}, **options)
    return Case(worker, lambda one: queue.add("welcome", one), "welcome", "emails")


def a_server(handle: Handle, **options: Any) -> Case:
    server = RpcServer(NOWHERE, queue="maths", **options)

    @server.handler("ADD", idempotent="resumable")
    async def add(data: Any, ctx: RpcContext) -> Any:
        return await handle(data, ctx)

    client = RpcClient(NOWHERE, queue="maths")
    return Case(server, lambda one: client.notify("ADD", one), "ADD", "maths")


def a_subscriber(handle: Handle, **options: Any) -> Case:
    sub = Subscriber(NOWHERE, exchange="shop", queue="analytics", **options)

    @sub.on("orders.*", idempotent="resumable")
    async def orders(data: Any, ctx: MessageContext) -> Any:
        return await handle(data, ctx)

    publisher = Publisher(NOWHERE, exchange="shop")
    return Case(sub, lambda one: publisher.publish("orders.new", one), "orders.*", "analytics")


def a_service(handle: Handle, **options: Any) -> Case:
    @channel("orders")
    class Orders:
        @consume("created", idempotent="resumable")
        async def created(self, data: Any, ctx: MessageContext) -> Any:
            return await handle(data, ctx)

    settings = Settings(QueueSettings(type="redis", url=NOWHERE, mode="stream"))
    service = QueueService(settings, channels=[Orders], **options)
    return Case(
        service,
        lambda one: service.send("orders", "created", one),
        "orders.created",
        "orders.created",
    )


CASES = [an_app, declared_jobs, a_server, a_subscriber, a_service]
every_way = pytest.mark.parametrize("way", CASES, ids=lambda way: way.__name__)


def also(case: Case) -> list[Service]:
    """The clients of the program under test."""
    cells = case.send.__closure__ or ()
    senders = [cell.cell_contents for cell in cells]
    return [one for one in senders if isinstance(one, RpcClient | Publisher)]


def run(case: Case) -> AbstractAsyncContextManager[Harness]:
    found = running(case.x, also=also(case))  # pyright: ignore[reportUnknownVariableType]
    return cast("AbstractAsyncContextManager[Harness]", found)


@every_way
async def test_a_message_is_handled_and_recorded(way: Callable[..., Case]) -> None:
    async def handle(data: Any, ctx: Any) -> str:
        return f"{data} in attempt {ctx.attempt}"

    case = way(handle)
    async with run(case) as harness:
        await case.send("o-1")
        await harness.drain()
        (sent,), (handled,), (attempt,) = harness.sent, harness.handled(case.of), harness.attempts()
        assert sent.id == handled.id == attempt.id
        data = handled.data.order_id if way is an_app else handled.data
        assert data == "o-1"
        assert (attempt.outcome, attempt.queue) == ("success", case.queue)
        if way is not a_subscriber:  # nobody gets what its handlers return
            assert harness.results(case.of) == ["o-1 in attempt 1"]
        assert (harness.failed(), harness.dead_letters()) == ([], [])
        harness.raise_errors()


@every_way
async def test_it_is_the_object_itself_with_its_options_and_left_as_it_was(
    way: Callable[..., Case],
) -> None:
    seen: list[str] = []

    class Mine(Hooks):
        def on_worker_success(self, event: Any) -> None:
            seen.append(event.id)

    async def handle(data: Any, ctx: Any) -> None: ...

    case = way(handle, hooks=[Mine()])
    everything = [case.x, *also(case)]
    before = [_outside(one) for one in everything]
    for _ in range(2):
        async with run(case) as harness:
            await case.send("o-1")
            await harness.drain()
            assert len(harness.handled()) == 1, "nothing is left of the last one"
            with pytest.raises(LifecycleError):
                async with running(case.x):
                    pass
    assert len(seen) == 2
    assert [_outside(one) for one in everything] == before
    assert not case.x.is_running


def _outside(service: Any) -> list[Any]:
    """What a service knows of the outside. Of a private part of it, there is no other way."""
    names = ("_broker", "_provider", "_clock", "_checkpoints", "_deduplication", "_hook_objects")
    return [getattr(service, name, None) for name in names]


@every_way
async def test_retries_take_no_time_and_steps_are_remembered(way: Callable[..., Case]) -> None:
    charged: list[str] = []

    async def handle(data: Any, ctx: Any) -> None:
        await ctx.io("charge", lambda: charged.append(data))
        if ctx.attempt < 3:
            raise ValueError("the printer jammed")

    case = way(handle, retry=RETRY, checkpoints=MemoryCheckpointStore())
    async with run(case) as harness:
        started = harness.clock.monotonic()
        await case.send("o-1")
        await harness.advance(0.5)
        assert [str(one.error) for one in harness.failed(case.of)] == ["the printer jammed"]
        await harness.drain()
        assert harness.clock.monotonic() - started == pytest.approx(1 + 2, abs=0.001)
        assert [one.outcome for one in harness.attempts()] == ["retry", "retry", "success"]
        with pytest.raises(ValueError, match="jammed"):
            harness.raise_errors()
    assert charged == ["o-1"]


@every_way
async def test_a_message_that_fails_for_good_is_a_dead_letter(way: Callable[..., Case]) -> None:
    async def handle(data: Any, ctx: Any) -> None:
        raise ValueError("broken")

    case = way(handle, retry=RETRY)
    async with run(case) as harness:
        await case.send("o-1")
        await harness.drain()
        assert len(harness.failed(case.of)) == 3
        (letter,) = harness.dead_letters(case.of)
        assert (letter.queue, str(letter.error)) == (case.queue, "broken")
        assert letter.envelope is not None
        assert harness.dead_letters(kind="unhandled") == []


@every_way
async def test_advance_runs_everything_at_its_own_time(way: Callable[..., Case]) -> None:
    times: list[float] = []

    async def handle(data: Any, ctx: Any) -> None:
        times.append(harness.clock.monotonic())
        raise ValueError("broken")

    case = way(handle, retry=RETRY)
    async with run(case) as harness:
        await case.send("o-1")
        await harness.advance(10)
        assert times == pytest.approx([0, 1, 3], abs=0.001)
        assert harness.clock.monotonic() == pytest.approx(10)


@every_way
async def test_the_clock_measures_the_timeout_of_a_handler(way: Callable[..., Case]) -> None:
    begun: list[int] = []

    async def handle(data: Any, ctx: Any) -> None:
        begun.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    case = way(handle, timeout=300, retry=RETRY)
    async with run(case) as harness:
        await case.send("o-1")
        await wait_for(lambda: begun)
        harness.clock.advance(299)
        assert harness.attempts() == []
        harness.clock.advance(1)
        await harness.drain()
        (failed,) = harness.failed(case.of)
        assert "took longer than its timeout of 300 s" in str(failed.error)
        assert begun == [1, 2]


@every_way
async def test_duplicates_are_found_with_its_own_options(way: Callable[..., Case]) -> None:
    async def handle(data: Any, ctx: Any) -> None: ...

    keys = Deduplication(ttl=60, key=lambda _: "the same")
    case = way(handle, deduplication=keys)
    async with run(case) as harness:
        for _ in range(2):
            await case.send("o-1")
            await harness.drain()
        assert case.x.metrics().duplicates == 1
        await harness.advance(61)
        await case.send("o-1")
        await harness.drain()
        assert case.x.metrics().duplicates == 1, "the key was forgotten"


@every_way
async def test_what_is_paused_is_left_alone(way: Callable[..., Case]) -> None:
    async def handle(data: Any, ctx: Any) -> None: ...

    case = way(handle)
    async with run(case) as harness:
        await case.x.pause()
        await case.send("o-1")
        await harness.drain()
        assert harness.attempts() == []
        await case.x.resume()
        await harness.drain()
        assert len(harness.handled(case.of)) == 1


@every_way
async def test_a_typo_in_a_name_is_not_an_empty_list(way: Callable[..., Case]) -> None:
    async def handle(data: Any, ctx: Any) -> None: ...

    case = way(handle)
    async with run(case) as harness:
        with pytest.raises(ConfigurationError, match=f"did you mean '{case.of}'".replace("*", ".")):
            harness.handled(f"x{case.of}")


# -- jobs -----------------------------------------------------------------------------------------


def mails() -> tuple[Queue, Any]:
    queue = Queue("emails", provider=NOWHERE)

    @queue.job(attempts=2, backoff=Exponential(60))
    async def welcome(to: str, lang: str = "en") -> str:
        if lang == "xx":
            raise ValueError("no such language")
        return f"sent to {to} in {lang}"

    return queue, welcome


async def test_a_queue_with_declared_jobs_gets_a_worker() -> None:
    queue, welcome = mails()
    async with running(queue) as harness:
        assert_type(harness, JobHarness)
        handle = await welcome.add(to="ada")
        await harness.drain()
        assert await handle.result() == "sent to ada in en"
        assert harness.results(welcome) == ["sent to ada in en"]
        await welcome.add(to="bob", lang="xx")
        await harness.drain()
        assert harness.clock.monotonic() == pytest.approx(60, abs=0.001)
        (letter,) = harness.dead_letters("welcome")
        assert str(letter.error) == "no such language"
        assert (await queue.stats()).failed == 1


async def test_a_view_without_an_event_loop_can_be_tested() -> None:
    queue, welcome = mails()

    def view(to: str) -> str:  # of Flask or Django
        return welcome.sync().add(to=to).id

    async with running(queue) as harness:
        with pytest.raises(WrongLoopError):
            view("ada")
        job_id = await asyncio.to_thread(view, "ada")
        await harness.drain()
        assert [one.id for one in harness.handled(welcome)] == [job_id]
    app: Matador = an_app(_ignored).x
    async with running(app) as harness:
        await asyncio.to_thread(lambda: app.sync().send(OrderPlaced("o-1")))
        await harness.drain()
        assert len(harness.handled("handler")) == 1


async def _ignored(data: Any, ctx: Any) -> None: ...


async def test_a_queue_that_an_earlier_loop_has_used_can_be_tested() -> None:
    queue = Queue("emails")

    def use() -> None:
        asyncio.run(_add(queue))

    await asyncio.to_thread(use)
    async with running(queue) as harness:
        await queue.add("welcome", {"to": "ada"})
        await harness.drain()
        assert [one.data for one in harness.sent] == [{"to": "ada"}]
        assert harness.attempts() == []


async def _add(queue: Queue) -> None:
    await queue.add("welcome", 1)


async def test_schedules_fire_at_their_times() -> None:
    times: list[str] = []
    queue = Queue("reports", provider=NOWHERE)

    @queue.job
    async def report() -> None:
        times.append(harness.clock.now().strftime("%a %H:%M"))

    @queue.job
    async def tick() -> None: ...

    async with running(queue) as harness:
        await queue.schedule("daily", "report", {}, cron="0 7 * * mon-fri", timezone="UTC")
        await harness.drain()
        assert times == []
        await harness.advance(7 * 86_400)
        assert times == ["Tue 07:00", "Wed 07:00", "Thu 07:00", "Fri 07:00", "Mon 07:00"]
        await queue.unschedule("daily")
        await queue.schedule("often", "tick", {}, every=10)
        await harness.advance(35)
        assert len(harness.handled("tick")) == 4  # at once, and every ten seconds


async def test_the_clock_moves_to_the_end_of_a_rate_limit() -> None:
    queue = Queue("calls", provider=NOWHERE)

    @queue.job
    async def call() -> None: ...

    worker = Worker(queue, rate_limit=RateLimit(2, per=60))
    async with running(worker) as harness:
        for _ in range(6):
            await call.add()
        await harness.advance(1)
        assert len(harness.handled(call)) == 2
        await harness.drain()
        assert len(harness.handled(call)) == 6
        assert harness.clock.monotonic() == pytest.approx(120, abs=1)


async def test_a_worker_with_a_handler_for_all_jobs() -> None:
    async def handle(job: ActiveJob[Any]) -> str:
        return job.name

    async with running(Worker("any", handle, provider=NOWHERE)) as harness:
        await harness.add("one", 1, delay=3600)
        await harness.drain()
        assert harness.results("one") == ["one"]


# -- RPC ------------------------------------------------------------------------------------------


async def test_a_call_returns_its_result_or_raises_its_error() -> None:
    server = RpcServer(NOWHERE, queue="maths")

    @server.handler("DIVIDE")
    async def divide(numbers: list[int], ctx: RpcContext) -> float:
        if ctx.attempt == 1 and numbers[0] == 0:
            raise DoRetry("not yet")
        return numbers[0] / numbers[1]

    async with running(server) as harness:
        assert_type(harness, RpcHarness)
        half = assert_type(await harness.call("DIVIDE", [3, 6], result_type=float), float)
        assert half == 0.5
        assert await harness.call("divide", [0, 3]) == 0.0  # in its second attempt
        assert [one.attempt for one in harness.attempts("DIVIDE")] == [1, 1, 2]
        with pytest.raises(RemoteError) as caught:
            await harness.call("DIVIDE", [1, 0])
        assert caught.value.code == "ZeroDivisionError"
        with pytest.raises(RemoteError, match="No handler"):
            await harness.call("ADD", [1, 0])
        assert [one.data for one in harness.sent] == [[3, 6], [0, 3], [1, 0], [1, 0]]


async def test_a_call_whose_retry_comes_too_late_has_no_reply() -> None:
    server = RpcServer(NOWHERE, queue="maths", ack=AckStrategy(retry_delay=60))

    @server.handler("LATER")
    async def later() -> None:
        raise DoRetry("not yet")

    async with running(server) as harness:
        with pytest.raises(RpcTimeoutError, match="LATER: no reply"):
            await harness.call("LATER", timeout=30)


# -- pub/sub and channels -------------------------------------------------------------------------


async def test_messages_are_found_by_pattern_and_by_key() -> None:
    sub = Subscriber(NOWHERE, exchange="shop")  # with a queue of its own

    @sub.on("orders.#")
    async def orders(message: Any) -> None: ...

    @sub.on("invoices.*")
    def invoices(message: Any) -> None: ...

    async with running(sub) as harness:
        assert_type(harness, PubSubHarness)
        await harness.publish("orders.created", 1)
        await harness.publish("orders.eu.paid", 2)
        await harness.publish("invoices.paid", 3)
        assert (await harness.publish("other", 4)).queues == 0
        await harness.drain()
        assert [one.data for one in harness.handled("orders.#")] == [1, 2]
        assert [one.data for one in harness.handled("invoices.paid")] == [3]
        assert len(harness.sent) == 4


async def test_what_a_channel_publishes_is_found_by_the_name_of_its_consumer() -> None:
    async def handle(data: Any, ctx: Any) -> None: ...

    service: QueueService = a_service(handle).x
    async with running(service) as harness:
        assert_type(harness, ChannelHarness)
        await harness.publish("orders", "created", 1)
        await harness.send("orders", "created", 2)
        await harness.drain()
        assert sorted(one.data for one in harness.handled("orders.created")) == [1, 2]


# -- several at once ------------------------------------------------------------------------------


async def test_others_run_on_the_same_transport_and_clock() -> None:
    queue, welcome = mails()
    client = RpcClient(NOWHERE, queue="maths")
    server = RpcServer(NOWHERE, queue="maths")

    @server.handler("DOUBLE")
    async def double(number: int) -> int:
        await welcome.with_options(delay=60).add(to=f"number {number}")
        return 2 * number

    async with running(queue, also=[server, client]) as harness:
        assert await client.call("DOUBLE", 2) == 4
        await harness.drain()
        assert harness.results("welcome") == ["sent to number 2 in en"]
        assert len(harness.handled("DOUBLE")) == 1
        assert isinstance(harness.transport, MemoryTransport)


async def test_what_only_sends_is_tested_by_what_it_sent() -> None:
    publisher = Publisher(NOWHERE, exchange="shop")
    async with running(publisher) as harness:
        await publisher.publish("orders.created", {"id": 1}, correlation_id="c-1")
        (sent,) = harness.sent
        assert (sent.data, sent.docket.event_key) == ({"id": 1}, "orders.created")
        assert sent.docket.correlation_id == "c-1"


async def test_anything_else_is_refused_with_the_right_form() -> None:
    with pytest.raises(ConfigurationError, match=r"running\(app\)"):
        async with running("app"):  # type: ignore[call-overload]
            pass


async def test_the_fixture_runs_every_way_in(
    matador_harness: Callable[..., AbstractAsyncContextManager[RpcHarness]],
    manual_clock: ManualClock,
) -> None:
    async def handle(data: Any, ctx: Any) -> Any:
        return data

    async with matador_harness(a_server(handle).x) as harness:
        assert harness.clock is manual_clock
        assert await harness.call("ADD", 5) == 5
