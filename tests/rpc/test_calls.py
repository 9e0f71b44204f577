"""Calls and notifications, on every broker."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from tests.rpc.conftest import Place, pipeline

from matador.errors import (
    InvalidMessageError,
    NotStartedError,
    QueueNotFoundError,
    ShuttingDownError,
)
from matador.rpc import (
    AckStrategy,
    Deduplication,
    RemoteError,
    RpcContext,
    RpcServer,
    RpcTimeoutError,
)
from matador.testing import wait_for
from matador.transports import transport_from_url
from matador.transports.base import Browsing

local = pytest.mark.parametrize("place", ["memory", "sqlite"], indirect=True)


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


@pipeline
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
        await wait_for(lambda: server.metrics().messages_failed == 3 and server.in_flight == 0)


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


@pipeline
async def test_an_unknown_command_is_an_error(place: Place) -> None:
    server = place.server()
    server.register("add", add)
    async with server, place.client() as client:
        with pytest.raises(RemoteError) as caught:
            await client.call("nope", timeout=20)
        assert caught.value.code == "ValidationError"
        assert caught.value.remote_message == "No handler registered for command: NOPE"
        assert caught.value.details == {"command": "NOPE", "registeredCommands": ["ADD"]}


@pipeline
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


@pipeline
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


@pipeline
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
        await wait_for(lambda: server.metrics().messages_succeeded == 3)
        assert client.pending == 0


@pipeline
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
        go_on.set()
        await wait_for(lambda: server.metrics().messages_succeeded == 1)


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
        await clients[0].shutdown()
        assert await clients[1].call("echo", "still") == "still"
        for client in clients:
            await client.shutdown()
    await transport.disconnect()


async def test_a_queue_that_does_not_exist(place: Place) -> None:
    async with place.client() as client:
        start_one = re.escape(f"RpcServer(…, queue={place.queue!r})")
        with pytest.raises(QueueNotFoundError, match=start_one):
            await client.call("add", timeout=20)
        with pytest.raises(QueueNotFoundError, match=start_one):
            await client.notify("add")


@pipeline
async def test_a_client_must_be_started(place: Place) -> None:
    client = place.client()
    with pytest.raises(NotStartedError):
        await client.call("add")
    with pytest.raises(NotStartedError):
        await client.notify("add")


@pipeline
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
    await client.shutdown()
    with pytest.raises(ShuttingDownError, match="shut down before the reply came"):
        await call
    await client.shutdown()
    await server.shutdown(timeout=0)


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
        assert client.metrics().messages_sent == 1


@pipeline
async def test_slow_handlers_are_cut_off_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    server = place.server(timeout=0.2, slow_call=0.1)

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


@pipeline
async def test_another_command_with_the_same_id_is_no_duplicate(place: Place) -> None:
    server = place.server(deduplication=Deduplication(ttl=60))
    server.register("charge", lambda: "charged")
    server.register("refund", lambda: "refunded")
    async with server, place.client() as client:
        for _ in range(2):
            assert await client.call("charge", message_id="order-7", timeout=30) == "charged"
        assert await client.call("refund", message_id="order-7", timeout=30) == "refunded"
        assert server.metrics().duplicates == 1


async def letters_of(server: RpcServer, url: str) -> list[str | None]:
    """The reasons of the dead letters of a server."""
    ((_, _, queue),) = server.topology.dead_letter_names()
    transport = transport_from_url(url)
    await transport.connect()
    assert isinstance(transport, Browsing)
    found = [one.reason async for one in transport.browse(queue)]
    await transport.disconnect()
    return found


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # which two transports may share
async def test_what_a_caller_was_told_on_purpose_is_no_dead_letter(place: Place) -> None:
    server = place.server(dead_letters=True)

    @server.handler("refuse")
    def refuse() -> None:
        raise RemoteError("NO_MONEY", "the account is empty")

    @server.handler("break")
    def fail() -> None:
        raise ValueError("broken")

    async with server, place.client() as client:
        with pytest.raises(RemoteError, match="the account is empty"):
            await client.call("refuse", timeout=30)
        with pytest.raises(RemoteError, match="broken"):
            await client.call("break", timeout=30)
        with pytest.raises(RemoteError, match="No handler"):
            await client.call("unknown", timeout=30)
        await server.wait_idle()
        assert [str(reason) for reason in await letters_of(server, place.url)] == ["broken"]


@local
async def test_a_notification_is_retried_with_what_travels_along(place: Place) -> None:
    server, seen = place.server(ack=AckStrategy(retry_delay=0)), list[tuple[Any, ...]]()

    @server.handler("log")
    def note(data: Any, ctx: RpcContext) -> None:
        seen.append((data, ctx.message_id, ctx.correlation_id, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("not yet")

    async with server, place.client() as client:
        sent = await client.notify("log", {"a": 1})
        await wait_for(lambda: len(seen) == 2)
        assert seen[0][:3] == seen[1][:3]
        assert [one[1] for one in seen] == [sent, sent]
        assert [one[3] for one in seen] == [1, 2]


@local
async def test_a_plain_function_is_timed_and_its_result_returned(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    server = place.server(slow_call=0)
    server.register("seven", lambda: 7)
    async with server, place.client() as client:
        caplog.set_level(logging.WARNING, "matador.rpc")
        assert await client.call("seven", timeout=30) == 7
    assert "SEVEN of" in caplog.text


def test_a_server_knows_its_functions_and_says_when_one_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "matador.rpc")
    server = RpcServer("memory://", queue="q")
    server.register("b", lambda: 1)
    server.register("a", lambda: 2)
    assert list(server.functions) == ["A", "B"]
    assert "replaced" not in caplog.text
    server.register("B", lambda: 3)
    assert "the handler of B is replaced" in caplog.text


@local
async def test_a_result_type_may_be_one_that_cannot_be_hashed(place: Place) -> None:
    server = place.server()
    server.register("seven", lambda: 7)
    async with server, place.client() as client:
        noted: Any = Annotated[int, ["a note"]]
        with pytest.raises(TypeError):
            hash(noted)
        assert await client.call("seven", result_type=noted, timeout=30) == 7
        with pytest.raises(InvalidMessageError):
            await client.call("seven", result_type=Annotated[str, ["a note"]], timeout=30)
