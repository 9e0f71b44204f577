"""Calls and notifications, on every broker."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from tests.rpc.conftest import Place

from matador.errors import (
    InvalidMessageError,
    NotStartedError,
    QueueNotFoundError,
    ShuttingDownError,
)
from matador.rpc import (
    AckStrategy,
    DeadLetterOptions,
    Deduplication,
    RemoteError,
    RpcContext,
    RpcTimeoutError,
    Validation,
)
from matador.testing import wait_for
from matador.transports import transport_from_url


@dataclass
class Add:
    a: int
    b: int


class Sum(msgspec.Struct):
    total: int


class Model(pydantic.BaseModel):
    a: int


@attrs.define
class Attrs:
    a: int


class Typed(TypedDict):
    a: int


async def add(request: Add, ctx: RpcContext) -> int:
    return request.a + request.b


async def echo(data: Any) -> Any:
    return data


async def test_a_call_returns_what_the_handler_returns(place: Place) -> None:
    server = place.server()
    server.register("add", add)
    async with server, place.client() as client:
        total = await client.call("ADD", Add(1, 2), timeout=20, result_type=int)
        assert total == 3
        assert await client.call("aDd", {"a": 2, "b": 3}) == 5
        assert client.pending == 0
        assert client.health().status == server.health().status == "healthy"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (Add(1, 2), Add),
        (Sum(3), Sum),
        (Model(a=1), Model),
        (Attrs(1), Attrs),
        (Typed(a=1), Typed),
        ([Sum(1), Sum(2)], list[Sum]),
        (None, None),
        (0, int),
        (False, bool),
        ("", str),
    ],
)
async def test_every_kind_of_payload_goes_there_and_back(given: Any, kind: Any) -> None:
    place = Place("memory", "memory://", "payloads")
    server = place.server()
    seen: list[Any] = []

    async def handler(data: Any) -> Any:
        seen.append(data)
        return data

    handler.__annotations__ = {"data": kind, "return": kind}
    server.register("ECHO", handler)
    async with server, place.client() as client:
        assert await client.call("echo", given, result_type=kind) == given
        assert seen == [given]


async def test_the_context_says_what_came_with_the_call(place: Place) -> None:
    server = place.server()
    seen: list[RpcContext] = []

    @server.handler("look")
    def look(ctx: RpcContext, *, data: dict[str, int]) -> None:
        seen.append(ctx)

    async with server, place.client() as client:
        result = await client.call(
            "look",
            {"n": 1},
            correlation_id="trace-1",
            metadata={"tenant": "acme", "n": 7, "x-retry-count": 99, "x-hermes-a": "b"},
            message_id="request-1",
            timeout=20,
        )
        assert result is None
        (ctx,) = seen
        assert (ctx.command, ctx.correlation_id, ctx.message_id) == ("LOOK", "trace-1", "request-1")
        assert {name: ctx.headers[name] for name in ctx.headers if "-" not in name} == {
            "tenant": "acme",
            "n": 7,
        }
        assert ctx.wants_reply
        assert ctx.attempts == 1
        assert ctx.queue == place.queue
        assert ctx.deadline is not None
        left = ctx.deadline - datetime.now(UTC)
        assert timedelta(0) < left < timedelta(seconds=20)


async def test_a_correlation_id_may_be_used_again(place: Place) -> None:
    """Replies are not mixed up, though all calls of a request have its id."""
    server = place.server()

    @server.handler("wait")
    async def wait(data: int, ctx: RpcContext) -> list[Any]:
        await asyncio.sleep(0.02 * (5 - data))
        return [data, ctx.correlation_id]

    async with server, place.client() as client:
        calls = [client.call("wait", n, correlation_id="trace", timeout=20) for n in range(5)]
        assert await asyncio.gather(*calls) == [[n, "trace"] for n in range(5)]


async def test_errors_arrive_with_their_code_and_details(place: Place) -> None:
    server = place.server()

    class CardDeclinedError(Exception):
        details = {"card": "4242"}

    @server.handler("charge")
    async def charge() -> None:
        raise CardDeclinedError("no funds")

    @server.handler("told")
    async def told() -> None:
        raise RemoteError("TEAPOT", "short and stout", [1, 2])

    @server.handler("odd")
    def odd() -> None:
        error = ValueError("x")
        error.details = {1, object()}  # type: ignore[attr-defined] - as users do
        raise error

    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("charge", timeout=20)
        found = caught.value
        assert (found.code, found.remote_message) == ("CardDeclinedError", "no funds")
        assert found.details == {"card": "4242"}
        with pytest.raises(RemoteError) as caught:
            await client.call("told", timeout=20)
        assert (caught.value.code, caught.value.details) == ("TEAPOT", [1, 2])
        with pytest.raises(RemoteError, match="ValueError: x") as caught:
            await client.call("odd", timeout=20)
        assert caught.value.details is None
        assert client.metrics().remote_errors == 3
        await wait_for(lambda: server.metrics().failed == 3 and server.in_flight == 0)


class Strict(logging.Formatter):
    """Needs the text of an exception, as the formatter of PySpark does."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            str(record.exc_info[1])
        return super().format(record)


async def test_odd_exceptions_are_errors_like_any_other(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(Strict())  # pytest's handler raises what a formatter raises
    server = place.server()

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @server.handler("raise")
    async def fail(data: str) -> None:
        raise {
            "stop": StopAsyncIteration(),
            "exit": GeneratorExit(),
            "cancel": asyncio.CancelledError(),
            "unprintable": Unprintable(),
            "surrogate": ValueError("\udcff"),
            "long": ValueError("x" * 100_000),
        }[data]

    async with server, place.client() as client:
        for name in ("stop", "exit", "cancel", "unprintable", "surrogate", "long"):
            with pytest.raises(RemoteError):
                await client.call("raise", name, timeout=20)


async def test_hidden_errors_keep_their_text() -> None:
    place = Place("memory", "memory://", "hidden")
    server = place.server(hide_errors=True)

    @server.handler("secret")
    async def secret(data: str) -> None:
        if data == "told":
            raise RemoteError("TOLD", "on purpose")
        raise ValueError("password=hunter2")

    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("secret", "x")
        assert caught.value.code == "ValueError"
        assert "hunter2" not in str(caught.value)
        with pytest.raises(RemoteError, match="on purpose"):
            await client.call("secret", "told")


async def test_an_unknown_command_is_an_error(place: Place) -> None:
    server = place.server()
    server.register("add", add)
    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("nope", timeout=20)
        assert caught.value.code == "ValidationError"
        assert caught.value.remote_message == "No handler registered for command: NOPE"
        assert caught.value.details == {"command": "NOPE", "registeredCommands": ["ADD"]}


async def test_data_of_another_type_is_an_error(place: Place) -> None:
    server = place.server()
    server.register("add", add)
    async with server, place.client() as client:
        with pytest.raises(RemoteError, match="missing required field `b`") as caught:
            await client.call("add", {"a": 1}, timeout=20)
        assert caught.value.code == "ValidationError"
        with pytest.raises(InvalidMessageError, match="ADD"):
            await client.call("add", {"a": 1, "b": 2}, result_type=str, timeout=20)
        with pytest.raises(InvalidMessageError, match="written as JSON"):
            await client.call("add", object())


async def test_a_result_with_an_error_field_is_a_result(place: Place) -> None:
    server = place.server()
    server.register("echo", echo)
    results: list[Any] = [
        {"error": None},
        {"error": "text"},
        {"error": {"code": "X", "message": "Y"}, "id": 1},
        {"error": {"code": "X"}},
        {"error": {"code": "X", "message": "Y", "more": 1}},
        {"error": {"code": 1, "message": "Y"}},
    ]
    async with server, place.client() as client:
        for result in results:
            assert await client.call("echo", result, timeout=20) == result
            assert await client.call("echo", result, timeout=20, result_type=dict) == result


async def test_a_result_that_cannot_be_sent_is_an_error(place: Place) -> None:
    server = place.server()

    @server.handler("object")
    async def made() -> Any:
        return object()

    @server.handler("nan")
    async def nan() -> float:
        return float("nan")

    async with server, place.client() as client:
        for command in ("object", "nan"):
            with pytest.raises(RemoteError, match="cannot be written as JSON") as caught:
                await client.call(command, timeout=20)
            assert caught.value.code == "InvalidMessageError"


@pytest.mark.broker
@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_a_reply_that_is_too_large_is_an_error(place: Place) -> None:
    limited = Place(place.name, f"{place.url}?max_message_size=10000", place.queue)
    server = limited.server()

    @server.handler("big")
    async def big() -> str:
        return "x" * 10_001

    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("big", timeout=20)
        assert caught.value.code == "MessageTooLargeError"


async def test_no_reply_in_time(place: Place) -> None:
    server = place.server()
    began = asyncio.Event()
    go_on = asyncio.Event()

    @server.handler("slow")
    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "late"

    server.register("echo", echo)
    async with server, place.client() as client:
        await client.call("echo", "the server listens", timeout=20)
        timeouts = 0
        while not began.is_set():  # on a busy machine, a call may be late before it is received
            timeouts += 1
            with pytest.raises(RpcTimeoutError, match=f"no reply to SLOW in {timeouts} s"):
                await client.call("slow", timeout=timeouts)
        go_on.set()  # its reply comes late, and nobody takes it for another
        assert await client.call("echo", "mine", timeout=20) == "mine"
        await wait_for(lambda: server.metrics().succeeded == 3)
        assert client.metrics().timeouts == timeouts
        assert client.pending == 0


async def test_what_nobody_waits_for_is_not_started(place: Place) -> None:
    server = place.server(concurrency=1)
    ran: list[str] = []
    go_on = asyncio.Event()

    @server.handler("work")
    async def work(data: str) -> None:
        ran.append(data)
        await go_on.wait()

    async with server, place.client() as client:
        first = asyncio.create_task(client.call("work", "first", timeout=30))
        await wait_for(lambda: ran == ["first"])
        with pytest.raises(RpcTimeoutError):
            await client.call("work", "late", timeout=0.2)
        go_on.set()
        await first
        await client.call("work", "third", timeout=30)
        await wait_for(lambda: server.metrics().expired == 1)
        assert ran == ["first", "third"]


async def test_a_cancelled_call_is_forgotten(place: Place) -> None:
    server = place.server()
    began = asyncio.Event()
    go_on = asyncio.Event()

    @server.handler("slow")
    async def slow() -> None:
        began.set()
        await go_on.wait()

    async with server, place.client() as client:
        call = asyncio.create_task(client.call("slow", timeout=30))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert client.pending == 0
        assert client.metrics().cancelled == 1
        go_on.set()
        await wait_for(lambda: server.metrics().succeeded == 1)


async def test_calls_run_side_by_side(place: Place) -> None:
    server = place.server(concurrency=20)
    running = most = 0
    full = asyncio.Event()

    @server.handler("work")
    async def work(data: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 20:
            full.set()
        await full.wait()
        running -= 1
        return data

    async with server, place.client() as client:
        results = await asyncio.gather(*(client.call("work", n) for n in range(100)))
        assert results == list(range(100))
        assert most == 20


async def test_several_clients_share_a_queue_and_a_transport(place: Place) -> None:
    transport = transport_from_url(place.url)
    shared = place.server() if place.name == "memory" else None
    server = shared or place.server()
    server.register("echo", echo)
    given = "memory://" if place.name == "memory" else transport
    async with server:
        clients = [type(place.client())(given, queue=place.queue) for _ in range(3)]
        for client in clients:
            await client.start()
        calls = [client.call("echo", [n, m]) for n, client in enumerate(clients) for m in range(20)]
        assert await asyncio.gather(*calls) == [[n, m] for n in range(3) for m in range(20)]
        await clients[0].close()
        assert await clients[1].call("echo", "still") == "still"
        for client in clients:
            await client.close()
    await transport.disconnect()


async def test_a_queue_that_does_not_exist(place: Place) -> None:
    async with place.client() as client:
        with pytest.raises(QueueNotFoundError, match=place.queue):
            await client.call("add", timeout=20)
        with pytest.raises(QueueNotFoundError, match=place.queue):
            await client.notify("add")
        assert client.metrics().not_sent == 1


async def test_a_client_must_be_started(place: Place) -> None:
    client = place.client()
    with pytest.raises(NotStartedError):
        await client.call("add")
    with pytest.raises(NotStartedError):
        await client.notify("add")


async def test_closing_fails_what_waits(place: Place) -> None:
    server = place.server()
    began = asyncio.Event()

    @server.handler("slow")
    async def slow() -> None:
        began.set()
        await asyncio.Event().wait()

    await server.start()
    client = place.client()
    await client.start()
    call = asyncio.create_task(client.call("slow", timeout=60))
    await began.wait()
    await client.close()
    with pytest.raises(ShuttingDownError, match="closed before the reply came"):
        await call
    await client.close()
    await server.stop(force=True)


async def test_a_notification_is_run_and_not_answered(place: Place) -> None:
    server = place.server()
    seen: list[tuple[Any, bool, str]] = []

    @server.handler("log")
    async def note(data: Any, ctx: RpcContext) -> str:
        seen.append((data, ctx.wants_reply, ctx.message_id))
        return "nobody reads this"

    async with server, place.client() as client:
        sent = await client.notify("log", {"text": "hi"})
        await wait_for(lambda: len(seen) == 1)
        assert seen == [({"text": "hi"}, False, sent)]
        assert client.metrics().notified == 1


async def test_a_failed_notification_is_tried_again_and_kept(place: Place) -> None:
    server = place.server(
        ack=AckStrategy(max_retries=3, retry_delay=0.01),
        dead_letters=DeadLetterOptions(exchange=f"{place.queue}.dlx"),
    )
    attempts: list[tuple[int, bool]] = []

    @server.handler("log")
    async def note(data: str, ctx: RpcContext) -> None:
        attempts.append((ctx.attempts, ctx.first_failure is not None))
        raise OSError("disk full")

    async with server, place.client() as client:
        await client.notify("log", "one", message_id="n-1")
        await wait_for(lambda: server.metrics().dead_lettered == 1, timeout=30)
        assert attempts == [(1, False), (2, True), (3, True)]
        (letter,) = await _letters(place)
        assert letter == b'"one"'


async def test_with_dead_letters_a_failed_call_is_answered_and_kept(place: Place) -> None:
    server = place.server(dead_letters=DeadLetterOptions(exchange=f"{place.queue}.dlx"))

    @server.handler("fail")
    async def fail(data: str) -> None:
        raise ValueError("no")

    async with server, place.client() as client:
        with pytest.raises(RemoteError, match="no"):
            await client.call("fail", "kept", timeout=20)
        with pytest.raises(RemoteError, match="No handler"):
            await client.call("unknown", "kept, too", timeout=20)
        await wait_for(lambda: server.metrics().dead_lettered == 2)
        assert sorted(await _letters(place, 2)) == [b'"kept"', b'"kept, too"']


async def test_dead_letters_are_processed(place: Place) -> None:
    seen: list[tuple[Any, str]] = []

    async def processed(data: Any, ctx: RpcContext) -> None:
        seen.append((data, ctx.command))

    server = place.server(
        dead_letters=DeadLetterOptions(exchange=f"{place.queue}.dlx", handler=processed)
    )

    @server.handler("fail")
    async def fail(data: str) -> None:
        raise ValueError("no")

    async with server, place.client() as client:
        with pytest.raises(RemoteError, match="no"):
            await client.call("fail", "kept", timeout=20)
        await wait_for(lambda: seen == [("kept", "FAIL")], timeout=30)
    assert await _letters(place, 0) == []


async def _letters(place: Place, count: int = 1) -> list[bytes]:
    """The bodies of the dead letters, once there are so many."""
    if place.name == "memory":
        server = place.client()
        await server.start()
        transport: Any = server._connection.transport
    else:
        transport = transport_from_url(place.url)
        await transport.connect()
    found: list[bytes] = []

    async def all_there() -> bool:
        found[:] = [one.body async for one in transport.browse(f"{place.queue}.dlq")]
        return len(found) == count

    await wait_for(all_there)
    if place.name != "memory":
        await transport.disconnect()
    return found


async def test_duplicates_share_one_run_and_one_reply(place: Place) -> None:
    server = place.server(deduplication=Deduplication(ttl=60))
    ran: list[int] = []
    go_on = asyncio.Event()

    @server.handler("charge")
    async def charge(data: int) -> int:
        ran.append(data)
        await go_on.wait()
        return data + 1

    @server.handler("refund")
    async def refund(data: int) -> str:
        return "refunded"

    async with server, place.client() as client:
        calls = [
            asyncio.create_task(client.call("charge", 7, message_id="order-7", timeout=30))
            for _ in range(5)
        ]
        await wait_for(lambda: server.metrics().received == 5)
        go_on.set()
        assert await asyncio.gather(*calls) == [8] * 5
        assert await client.call("charge", 7, message_id="order-7", timeout=30) == 8
        assert ran == [7]
        assert server.metrics().duplicates == 5
        assert await client.call("refund", 7, message_id="order-7", timeout=30) == "refunded"


async def test_slow_handlers_are_cut_off_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    server = place.server(handler_timeout=0.2, slow_call=0.1)

    @server.handler("slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    async with server, place.client() as client:
        caplog.set_level(logging.WARNING, "matador.rpc")
        with pytest.raises(RemoteError) as caught:
            await client.call("slow", timeout=20)
        assert caught.value.code == "TimeoutError"
        assert "SLOW of" in caplog.text
        assert "took" in caplog.text


async def test_too_large_a_request_is_an_error(place: Place) -> None:
    server = place.server(validation=Validation(max_size=100))
    server.register("echo", echo)
    async with server, place.client() as client:
        with pytest.raises(RemoteError, match="at most 100 are allowed") as caught:
            await client.call("echo", "x" * 200, timeout=20)
        assert caught.value.code == "ValidationError"
        assert await client.call("echo", timeout=20) is None


async def test_a_stop_lets_running_calls_finish(place: Place) -> None:
    server = place.server()
    began = asyncio.Event()
    go_on = asyncio.Event()

    @server.handler("slow")
    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "done"

    await server.start()
    async with place.client() as client:
        call = asyncio.create_task(client.call("slow", timeout=60))
        await began.wait()
        stopping = asyncio.create_task(server.stop())
        await wait_for(
            lambda: server._worker is None or server._worker.consumers[0]._stopping.is_set()
        )
        go_on.set()
        assert await call == "done"
        await stopping
        assert not server.is_running


async def test_what_a_stop_cuts_short_is_given_back(place: Place) -> None:
    first, second = place.server(), place.server()
    began = asyncio.Event()

    @first.handler("work")
    async def hang() -> str:
        began.set()
        await asyncio.Event().wait()
        return "first"

    @second.handler("work")
    async def work(ctx: RpcContext) -> str:
        return f"second, attempt {ctx.attempts}"

    await first.start()
    async with place.client() as client:
        call = asyncio.create_task(client.call("work", timeout=60))
        await began.wait()
        await first.stop(force=True)
        async with second:
            assert await call == "second, attempt 1"


async def test_manual_acknowledgement(place: Place) -> None:
    server = place.server(ack=AckStrategy(mode="manual"))
    attempts: list[int] = []

    @server.handler("work")
    async def work(ctx: RpcContext) -> str:
        attempts.append(ctx.attempts)
        if ctx.attempts == 1:
            ctx.nack(requeue=True)
        else:
            ctx.ack()
        return f"attempt {ctx.attempts}"

    @server.handler("never")
    async def never(ctx: RpcContext) -> None:
        ctx.nack()

    async with server, place.client() as client:
        assert await client.call("work", timeout=30) == "attempt 2"
        with pytest.raises(RemoteError, match="nack"):
            await client.call("never", timeout=30)
