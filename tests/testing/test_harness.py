"""The application harness: in memory, with a clock of its own, and a record of what happened."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.shop import (
    QUEUE,
    Handler,
    OrderPaid,
    OrderPlaced,
    failing,
    make_app,
    subscribed,
)

from matador import (
    Context,
    DontRetry,
    Envelope,
    Hooks,
    Matador,
    Schema,
    SqliteCheckpointStore,
    SubscriberStub,
    Topology,
)
from matador.errors import ConfigurationError, NotStartedError, SendFailedError, TimeoutError
from matador.testing import AppHarness, ManualClock, make_message, running
from matador.transports.memory import MemoryTransport


async def test_an_application_runs_in_memory_and_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    store = SqliteCheckpointStore(tmp_path / "steps.db")
    app = make_app(f"sqlite:///{file}", Handler(), checkpoints=store)
    transport, clock = app.transport, app._config.clock
    async with running(app) as harness:
        assert harness.app is app
        assert app.transport is harness.transport
        assert isinstance(app.transport, MemoryTransport)
        await app.send(OrderPlaced("o-1"))  # as the code under test would
        await harness.drain()
        assert [one.data for one in harness.handled("handle")] == [OrderPlaced("o-1")]
    assert app.transport is transport
    assert app._config.clock is clock
    assert app.checkpoints is store
    assert app.state.status == "stopped"
    assert not any(tmp_path.iterdir()), "neither database was touched"  # noqa: ASYNC240


async def test_what_happened_is_recorded() -> None:
    async def answer(envelope: Envelope[Any], ctx: Context) -> int:
        return envelope.data.amount

    app = make_app(
        None,
        subscribed(answer, "good"),
        subscribed(failing(*[ValueError("broken")] * 9), "bad"),
    )
    async with running(app) as harness:
        await harness.send(OrderPlaced("o-1", 5))
        await harness.drain()
        assert [one.docket.target_subscriber for one in harness.sent] == ["good", "bad"]
        assert [one.data.amount for one in harness.handled()] == [5]
        assert harness.handled("bad") == []
        assert harness.results("good") == [5]
        assert [one.envelope.docket.attempts for one in harness.failed("bad")] == [1, 2, 3]
        assert harness.failed("good") == []
        (letter,) = harness.dead_letters("bad")
        assert letter.envelope is not None
        assert letter.envelope.data == OrderPlaced("o-1", 5)
        assert (letter.kind, letter.queue) == ("undeliverable", QUEUE)
        assert letter.reason == "max attempts exceeded (3)"
        assert harness.dead_letters(kind="unhandled") == []
        with pytest.raises(ValueError, match="broken"):
            harness.raise_errors()


async def test_retries_and_delays_take_no_time() -> None:
    handler = failing(ValueError("once"), ValueError("twice"))
    async with running(make_app(None, handler)) as harness:
        started = harness.clock.now()
        await harness.send(OrderPlaced("o-1"), delay=86400)
        await harness.drain()
        assert handler.runs == 3
        passed = (harness.clock.now() - started).total_seconds()
        assert passed == pytest.approx(86400 + 1 + 2, abs=0.001)
        assert harness.dead_letters() == []


async def test_the_test_may_move_time_itself() -> None:
    handler = Handler()
    async with running(make_app(None, handler)) as harness:
        await harness.send(OrderPlaced("o-1"), delay=60)
        await harness.drain(delayed=False)
        await harness.advance(59)
        assert handler.runs == 0
        await harness.advance(1)
        assert handler.runs == 1


async def test_what_callbacks_send_is_drained_too() -> None:
    last = Handler()

    async def pass_on(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.send(OrderPaid(envelope.data.order_id), delay=30)

    schema = Schema({OrderPlaced: [subscribed(pass_on)], OrderPaid: [subscribed(last, "last")]})
    async with running(schema) as harness:
        await harness.send(OrderPlaced("o-1"))
        await harness.drain()
        assert [one.data for one in harness.handled("last")] == [OrderPaid("o-1")]
        harness.raise_errors()


async def test_a_schema_alone_consumes_all_but_the_queues_of_stubs() -> None:
    bill = subscribed(Handler(), "bill", queue="billing")
    stub = SubscriberStub("ship", description="Elsewhere.", queue="warehouse")
    async with running(Schema({OrderPlaced: [subscribed(Handler()), bill, stub]})) as harness:
        assert harness.app.consume_from == ("events", "billing")
        result = await harness.send(OrderPlaced("o-1"))
        assert result.sent == 3
        await harness.drain()
        assert len(harness.handled()) == 2
        assert len(harness.transport.messages("test.warehouse")) == 1


async def test_a_producer_can_be_tested_by_what_it_sent() -> None:
    stub = SubscriberStub("ship", description="Elsewhere.")
    app = Matador("sqlite:///never-made.db", schema=Schema({OrderPlaced: [stub]}))
    async with running(app) as harness:
        assert (await app.send(OrderPlaced("o-1"), correlation_id="c-1")).ok
        await harness.drain()
        (sent,) = harness.sent
        assert (sent.data, sent.docket.correlation_id) == (OrderPlaced("o-1"), "c-1")
    assert not Path("never-made.db").exists()  # noqa: ASYNC240


async def test_the_queues_to_consume_can_be_chosen() -> None:
    handler = Handler()
    async with running(
        make_app(None, handler, consume_from=()), consume_from=["events"]
    ) as harness:
        await harness.send(OrderPlaced("o-1"))
        await harness.drain()
    assert handler.runs == 1


async def test_malformed_and_unknown_messages_are_dead_letters_too() -> None:
    async with running(make_app(None, Handler())) as harness:
        await harness.transport.send([make_message(b"hello", queue=QUEUE)])
        await harness.drain()
        (letter,) = harness.dead_letters()
        assert (letter.envelope, letter.body) == (None, b"hello")
        with pytest.raises(Exception, match="not JSON"):
            harness.raise_errors()


async def test_a_typo_in_a_name_is_not_an_empty_list() -> None:
    async with running(make_app(None, Handler())) as harness:
        for look in (harness.handled, harness.failed, harness.dead_letters, harness.results):
            with pytest.raises(ConfigurationError, match="did you mean 'handle'"):
                look("handel")


async def test_a_send_that_fails_raises() -> None:
    async with running(make_app(None, Handler(), max_message_size=10)) as harness:
        with pytest.raises(SendFailedError):
            await harness.send(OrderPlaced("o-1"))
        assert len(harness.send_errors) == 1


async def test_a_drain_in_vain_says_what_is_still_there() -> None:
    async def endless(envelope: Envelope[Any], ctx: Context) -> None:
        await asyncio.Event().wait()

    async with running(make_app(None, endless)) as harness:
        await harness.send(OrderPlaced("o-1"))
        await harness.send(OrderPlaced("o-2"), delay=60)
        with pytest.raises(TimeoutError) as caught:
            await harness.drain(timeout=0.05)
    text = str(caught.value)
    assert "1 in flight in shop.events" in text
    assert "1 delayed in shop.events" in text
    assert "handle of order.placed (attempt 1) is still running" in text


async def test_a_drain_without_end_ends() -> None:
    async def again(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.send(OrderPlaced("o-1"), delay=1)

    async with running(make_app(None, again)) as harness:
        await harness.send(OrderPlaced("o-1"))
        with pytest.raises(TimeoutError, match="still there"):
            await harness.drain(timeout=0.1)
        await harness.drain(delayed=False)


async def test_the_hooks_of_the_application_are_called_as_ever() -> None:
    seen: list[str] = []

    class Mine(Hooks):
        def on_worker_success(self, event: Any) -> None:
            seen.append(event.envelope.data.order_id)

    async with running(make_app(None, Handler(), hooks=Mine())) as harness:
        await harness.send(OrderPlaced("o-1"))
        await harness.drain()
    assert seen == ["o-1"]


async def test_resumable_subscribers_remember_their_steps() -> None:
    charged: list[int] = []

    async def charge(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.io("charge", lambda: charged.append(1))
        if ctx.attempt < 3:
            raise ValueError("the printer jammed")

    async with running(make_app(None, subscribed(charge, idempotent="resumable"))) as harness:
        await harness.send(OrderPlaced("o-1"))
        await harness.drain()
        assert len(harness.handled("handle")) == 1
    assert charged == [1]


async def test_it_ends_when_the_test_fails() -> None:
    app = make_app(None, Handler())
    with pytest.raises(DontRetry):
        async with running(app):
            raise DontRetry("the test failed")
    assert app.state.status == "stopped"
    with pytest.raises(Exception, match="application"):
        await app.send(OrderPlaced("o-1"))


async def test_a_start_that_fails_is_raised_and_leaves_the_application_as_it_was() -> None:
    twice = subscribed(Handler())
    app = make_app(None, twice, twice)
    transport = app.transport
    with pytest.raises(Exception, match="Schema validation failed"):
        async with running(app):
            pass
    assert app.transport is transport
    with pytest.raises(NotStartedError):
        await app.send(OrderPlaced("o-1"))


async def test_the_fixture_shares_its_clock_with_the_test(
    matador_harness: Callable[..., AbstractAsyncContextManager[AppHarness]],
    manual_clock: ManualClock,
) -> None:
    async with matador_harness(make_app(None, Handler())) as harness:
        assert harness.clock is manual_clock
        await harness.send(OrderPlaced("o-1"), delay=10)
        await harness.drain()
    assert manual_clock.monotonic() == pytest.approx(10, abs=0.001)


def test_the_plugin_works_where_pytest_asyncio_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(
        "import asyncio\n"
        "from matador import Schema\n"
        "def test_it(matador_harness):\n"
        "    async def use():\n"
        "        async with matador_harness(Schema()) as harness:\n"
        "            await harness.drain()\n"
        "    asyncio.run(use())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_topology_of_several_queues_is_kept() -> None:
    async def use() -> None:
        topology = Topology("shop", queues=["events", "billing"])
        app = make_app(None, Handler(), topology=topology)
        async with running(app) as harness:
            await harness.send(OrderPlaced("o-1"))
            await harness.drain()
            assert harness.transport.messages("shop.billing") == []

    asyncio.run(use())
