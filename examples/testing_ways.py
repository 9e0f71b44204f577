"""Tests for emails.py, maths.py, analytics.py and orders.py, without a broker or waiting.

Run them with `pytest testing_ways.py`.
"""

# --8<-- [start:imports]
import pytest
from analytics import analytics
from emails import emails, welcome
from maths import add, server
from orders import OrderCreated, service

from matador import DoRetry
from matador.errors import RemoteError
from matador.jobs import ActiveJob, Queue, Worker
from matador.rpc import RpcClient, RpcContext, RpcServer
from matador.testing import make_job, make_rpc_context, running

# --8<-- [end:imports]


# --8<-- [start:jobs]
async def test_a_welcome_is_sent_an_hour_later() -> None:
    async with running(emails) as harness:
        await welcome.with_options(delay=3600).add(to="ada@example.com")
        await harness.advance(3599)
        assert harness.handled(welcome) == []
        await harness.advance(1)
        assert harness.results(welcome) == ["sent to ada@example.com in en"]


async def test_a_job_of_the_wrong_type_fails_for_good() -> None:
    async with running(emails) as harness:
        await harness.add("welcome", {"to": 5})
        await harness.drain()
        (letter,) = harness.dead_letters(welcome)
        assert "Expected `str`, got `int`" in str(letter.error)


# --8<-- [end:jobs]


# --8<-- [start:rpc]
async def test_numbers_are_added() -> None:
    async with running(server) as harness:
        assert await harness.call("ADD", [1, 2, 3]) == 6
        with pytest.raises(RemoteError, match="Expected `int`"):
            await harness.call("ADD", ["one"])


# --8<-- [end:rpc]


# --8<-- [start:pubsub]
async def test_every_order_is_counted() -> None:
    async with running(analytics) as harness:
        await harness.publish("orders.created", {"id": 1})
        published = await harness.publish("invoices.created", {"id": 2})
        assert published.queues == 0, "no pattern matches"
        await harness.drain()
        assert [message.data for message in harness.handled("orders.*")] == [{"id": 1}]


# --8<-- [end:pubsub]


# --8<-- [start:channels]
async def test_an_order_reaches_its_consumer() -> None:
    async with running(service) as harness:
        await harness.send("orders", "created", OrderCreated("7"))
        await harness.drain()
        assert len(harness.handled("orders.created")) == 1
        harness.raise_errors()


# --8<-- [end:channels]


# --8<-- [start:retries]
async def test_a_busy_printer_is_asked_again_in_a_minute() -> None:
    async def print_label(job: ActiveJob[str]) -> str:
        if job.attempt == 1:
            raise DoRetry("the printer is busy", delay=60)
        return f"label for {job.data}"

    async with running(Worker("labels", print_label, timeout=300)) as harness:
        await harness.add("print", "ada")
        await harness.advance(59)
        assert [attempt.outcome for attempt in harness.attempts("print")] == ["retry"]
        await harness.drain()
        assert harness.results("print") == ["label for ada"]


# --8<-- [end:retries]


# --8<-- [start:also]
async def test_a_call_adds_a_job() -> None:
    orders, mails = RpcServer("sqlite:///shop.db", queue="orders"), Queue("mails")
    client = RpcClient("sqlite:///shop.db", queue="orders")

    @orders.handler("PLACE")
    async def place(order_id: str) -> str:
        await mails.add("receipt", {"order_id": order_id})
        return "placed"

    async with running(orders, also=[mails, client]) as harness:
        assert await client.call("PLACE", "o-1") == "placed"
        assert harness.sent[-1].data == {"order_id": "o-1"}


# --8<-- [end:also]


# --8<-- [start:makers]
async def test_handlers_are_functions() -> None:
    async def greet(job: ActiveJob[str]) -> str:
        return f"{job.data} in attempt {job.attempt}"

    async def who(name: str, ctx: RpcContext) -> str:
        return f"{ctx.command} {name}"

    assert await add([1, 2]) == 3
    assert await welcome(to="ada@example.com") == "sent to ada@example.com in en"
    assert await greet(make_job("hello", attempt=2)) == "hello in attempt 2"
    assert await who("ada", make_rpc_context("WHO")) == "WHO ada"


# --8<-- [end:makers]
