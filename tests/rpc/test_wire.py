"""What travels: requests as a client stores them, and replies as a server sends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from matador.errors import (
    ConnectionFailedError,
    ConnectionLostError,
    DontRetry,
    DoRetry,
    InvalidMessageError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    TransportError,
    UnstorableError,
)
from matador.model.message import Delivery, Message, Properties, Receipt
from matador.model.topology import Topology
from matador.rpc import (
    AckStrategy,
    CallRetry,
    Deduplication,
    RemoteError,
    RpcClient,
    RpcContext,
    RpcServer,
    RpcTimeoutError,
)
from matador.rpc.replies import ReplyRouter, Waiting
from matador.rpc.wire import CORRELATION_ID, error_reply, read_reply
from matador.runtime.messages import RETRY_COUNT
from matador.testing import ManualClock, wait_for
from matador.transports import MemoryTransport


class Noting(MemoryTransport):
    """Notes what is sent, and refuses some of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent: list[Message] = []
        self.refuses: list[MatadorError] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self.sent += messages
        if self.refuses:
            return [self.refuses.pop(0) for _ in messages]
        return await super().send(messages)


def delivered(body: bytes, **more: Any) -> Delivery:
    return Delivery(body, {}, Receipt("replies", None), **more)


# -- requests ------------------------------------------------------------------------------------


@asynccontextmanager
async def calling(**options: Any) -> AsyncGenerator[tuple[RpcClient, Noting]]:
    """A client whose requests nobody handles, at a time that stands still."""
    transport = Noting()
    await transport.connect()
    await transport.apply_topology(Topology("rpc", queues=["q"]))
    client = RpcClient(transport, queue="rpc.q", clock=ManualClock(), **options)
    async with client:
        yield client, transport
    await transport.disconnect()


async def test_a_request_says_who_asks_until_when_and_what() -> None:
    async with calling() as (client, transport):
        call = asyncio.create_task(
            client.call(
                "add", [1, 2], timeout=7, message_id="m-1", metadata={"tenant": "t"}, priority=3
            )
        )
        await wait_for(lambda: len(transport.sent) == 1)
        (request,) = transport.sent
        assert (request.id, request.queue, request.body) == ("m-1", "rpc.q", b"[1,2]")
        assert (request.headers, request.priority, request.delay) == ({"tenant": "t"}, 3, 0.0)
        properties = request.properties
        assert properties is not None
        assert properties.reply_to == await transport.reply_address()
        assert (properties.type, properties.transient) == ("ADD", True)
        assert properties.expires_at == client._clock.time() + 7
        assert properties.correlation_id not in (None, "", "m-1"), "another call may have this id"
        assert client.pending == 1
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert client.pending == 0


async def test_a_new_request_is_found_by_its_own_id_or_by_that_of_the_caller() -> None:
    async with calling(timeout=0.05) as (client, transport):
        for given in (None, "trace", "trace"):
            with pytest.raises(RpcTimeoutError, match=r"rpc\.q: no reply to ADD in 0\.05 s$"):
                await client.call("add", correlation_id=given)
        first, second, third = transport.sent
        found = [one.properties and one.properties.correlation_id for one in transport.sent]
        assert found == [first.id, "trace", third.id]
        assert (second.headers, third.headers) == ({}, {CORRELATION_ID: "trace"})
        assert len({one.id for one in transport.sent}) == 3
        assert first.body == b"null"


async def test_a_notification_has_no_deadline_and_wants_no_reply() -> None:
    async with calling() as (client, transport):
        id_ = await client.notify("log", "hi", priority=2, metadata={"a": 1})
        assert await client.notify("log", message_id="m-1", correlation_id="c-1") == "m-1"
        first, second = transport.sent
        assert first.properties == Properties(type="LOG", correlation_id=id_)
        assert (first.id, first.body, first.headers, first.priority) == (id_, b'"hi"', {"a": 1}, 2)
        assert second.properties == Properties(type="LOG", correlation_id="c-1")
        assert (client.metrics().messages_sent, client.pending) == (2, 0)


@pytest.mark.parametrize("priority", [-1, 1.5, "high"])
async def test_what_cannot_travel_is_refused_before_anything_is_sent(priority: Any) -> None:
    odd_id: Any = 7
    async with calling() as (client, transport):
        for kind in (client.call, client.notify):
            with pytest.raises(MatadorError, match="priority"):
                await kind("add", priority=priority)
            with pytest.raises(InvalidMessageError, match="message_id must be text"):
                await kind("add", message_id=odd_id)
        assert (transport.sent, client.pending) == ([], 0)


async def test_a_queue_that_no_server_has_created_is_named() -> None:
    async with RpcClient(MemoryTransport(), queue="nobody") as client:
        for calling in (client.call("add", timeout=60), client.notify("add")):
            with pytest.raises(QueueNotFoundError, match="no server has created the queue") as one:
                await calling
            assert isinstance(one.value.__cause__, QueueNotFoundError)


@pytest.mark.parametrize(
    ("policy", "error", "attempt", "again"),
    [
        (CallRetry(), RpcTimeoutError("late"), 1, True),
        (CallRetry(), RpcTimeoutError("late"), 2, True),
        (CallRetry(), RpcTimeoutError("late"), 3, False),
        (CallRetry(1), RpcTimeoutError("late"), 1, False),
        (CallRetry(), ConnectionLostError("lost"), 1, True),
        (CallRetry(), NotConnectedError("away"), 1, True),
        (CallRetry(), ConnectionFailedError("refused"), 1, True),
        (CallRetry(), RemoteError("Code", "no"), 1, False),
        (CallRetry(), ValueError("no"), 1, False),
        (CallRetry(when=lambda error, attempt: attempt == 2), RemoteError("C", "no"), 2, True),
        (CallRetry(when=lambda error, attempt: attempt == 2), RpcTimeoutError("late"), 1, False),
        (CallRetry(when=lambda error, attempt: True), RpcTimeoutError("late"), 3, False),
    ],
)
def test_which_calls_are_made_again(
    policy: CallRetry, error: Exception, attempt: int, again: bool
) -> None:
    assert policy.again(error, attempt) is again


# -- waiting for a reply -------------------------------------------------------------------------


async def test_a_call_has_one_outcome() -> None:
    loop = asyncio.get_running_loop()
    first, second = Waiting(loop.create_future()), Waiting(loop.create_future())
    reply = delivered(b"1")
    first.answered(reply)
    first.fail(ValueError("late"))
    assert await first.reply is reply
    second.fail(ValueError("first"))
    second.fail(ValueError("second"))
    second.answered(reply)
    with pytest.raises(ValueError, match="first"):
        await second.reply
    assert not first.sent


async def test_a_reply_is_handed_to_the_call_with_its_id_and_to_no_other() -> None:
    replies, loop = ReplyRouter(), asyncio.get_running_loop()
    calls = {name: Waiting(loop.create_future()) for name in ("a", "b")}
    replies.waiting.update(calls)
    for properties in (None, Properties(), Properties(correlation_id="c")):
        replies._hand_over(delivered(b"0", properties=properties))
    mine = delivered(b"1", properties=Properties(correlation_id="a"))
    replies._hand_over(mine)
    assert await calls["a"].reply is mine
    assert list(replies.waiting) == ["b"]
    replies._hand_over(delivered(b"2", properties=Properties(correlation_id="a")))
    assert not calls["b"].reply.done()


def test_an_id_is_free_until_it_is_used_and_again_after_many_others() -> None:
    replies = ReplyRouter()
    assert replies.is_free("trace")
    assert not replies.is_free("trace")
    assert all(replies.is_free(str(number)) for number in range(9_999))
    assert not replies.is_free("trace"), "ten thousand are remembered"
    assert replies.is_free("one more")
    assert replies.is_free("trace")
    waiting: Any = object()
    replies.waiting["waits"] = waiting
    assert not replies.is_free("waits")


async def test_clients_share_the_replies_of_a_transport_until_the_last_is_closed() -> None:
    transport = MemoryTransport()
    await transport.connect()
    first = await ReplyRouter.open(transport)
    assert await ReplyRouter.open(transport) is first
    reader = first._reader
    assert reader is not None
    await first.close()
    assert not reader.done()
    await first.close()
    assert reader.cancelled()
    await first.close()
    again = await ReplyRouter.open(transport)
    assert again._reader is not None
    assert not again._reader.done()
    await again.close()
    await transport.disconnect()


async def test_replies_arrive_again_after_the_transport_was_disconnected() -> None:
    transport = MemoryTransport()
    server = RpcServer(transport, queue="q")
    server.register("ping", lambda: "pong")
    async with RpcClient(transport, queue="q") as client:
        async with server:
            assert await client.call("ping", timeout=60) == "pong"
        await transport.disconnect()
        await transport.connect()
        async with server:
            assert await client.call("ping", timeout=60) == "pong"
    await transport.disconnect()


# -- replies -------------------------------------------------------------------------------------


class Asked:
    """A server, and requests written by hand for it."""

    def __init__(self, **options: Any) -> None:
        self.transport = Noting()
        self.server = RpcServer(self.transport, queue="rpc.q", **options)
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Asked]:
        async with self.server:
            self.address = await self.transport.reply_address()
            yield self
        await self.transport.disconnect()

    async def send(self, command: str | None, body: bytes = b"1", **properties: Any) -> None:
        """A request; its caller waits, unless ``reply_to`` says something else."""
        given: dict[str, Any] = {
            "type": command,
            "reply_to": self.address,
            "correlation_id": "c-1",
        } | properties
        headers = given.pop("headers", {})
        request = Message("m-1", "rpc.q", body, headers, properties=Properties(**given))
        assert await MemoryTransport.send(self.transport, [request]) == [None]

    async def reply(self, *request: Any, **properties: Any) -> Any:
        """What the one reply to a request has in it."""
        before = len(self.transport.sent)
        await self.send(*request, **properties)
        await wait_for(lambda: len(self.transport.sent) > before)
        (reply,) = self.transport.sent[before:]
        assert (reply.id, reply.queue, reply.headers) == ("", self.address, {})
        assert reply.properties == Properties(correlation_id="c-1", transient=True)
        return json.loads(reply.body)

    async def letters(self) -> list[Any]:
        await wait_for(lambda: self.server.in_flight == 0)
        return [one async for one in self.server.dead_letters.browse()]


class OddDetailsError(Exception):
    @property
    def details(self) -> Any:
        raise RuntimeError("a bug")


class CallableDetailsError(Exception):
    def details(self) -> str:
        return "not this"


class DetailsError(Exception):
    details = {"n": 1}


HIDDEN = "the command failed; the log of the server says why"
ERRORS: list[tuple[Exception, bool, dict[str, Any]]] = [
    (ValueError("no"), False, {"code": "ValueError", "message": "no"}),
    (ValueError("no"), True, {"code": "ValueError", "message": HIDDEN}),
    (DetailsError("no"), False, {"code": "DetailsError", "message": "no", "details": {"n": 1}}),
    (DetailsError("no"), True, {"code": "DetailsError", "message": HIDDEN}),
    (OddDetailsError("no"), False, {"code": "OddDetailsError", "message": "no"}),
    (CallableDetailsError("no"), False, {"code": "CallableDetailsError", "message": "no"}),
    (DontRetry("never"), True, {"code": "DontRetry", "message": "never"}),
    (InvalidMessageError("odd"), True, {"code": "InvalidMessageError", "message": "odd"}),
    (RemoteError("CODE", "told"), True, {"code": "CODE", "message": "told"}),
    (
        RemoteError("CODE", "told", {"a": 1}),
        False,
        {"code": "CODE", "message": "told", "details": {"a": 1}},
    ),
]


@pytest.mark.parametrize(("error", "hides", "told"), ERRORS)
async def test_what_a_caller_is_told_of_an_error(
    error: Exception, hides: bool, told: dict[str, Any]
) -> None:
    asked = Asked(hide_errors=hides)

    @asked.server.handler("fail")
    async def fail() -> None:
        raise error

    async with asked.running():
        assert await asked.reply("fail") == {"error": told}
        kept = [] if isinstance(error, RemoteError) else [str(error)]
        assert [one.reason for one in await asked.letters()] == kept
        for letter in await asked.letters():
            assert letter.stored.properties == Properties(correlation_id="c-1", type="fail")


async def test_a_caller_that_waits_is_told_at_once_and_others_have_the_retries() -> None:
    asked = Asked(ack=AckStrategy(max_retries=2, retry_delay=0))
    attempts: list[tuple[str | None, int, bool]] = []

    @asked.server.handler("fail")
    async def fail(data: str | int, ctx: RpcContext) -> str:
        attempts.append((ctx.correlation_id, ctx.attempt, ctx.wants_reply))
        if data == "again" and ctx.attempt == 2:
            return "done"
        raise DoRetry("again", delay=0) if data == "again" else ValueError("no")

    async with asked.running():
        assert await asked.reply("fail") == {"error": {"code": "ValueError", "message": "no"}}
        assert attempts == [("c-1", 1, True)]
        assert await asked.reply("fail", b'"again"') == "done"
        assert attempts[1:] == [("c-1", 1, True), ("c-1", 2, True)]
        await asked.send("fail", reply_to=None, headers={CORRELATION_ID: "c-2"})
        await wait_for(lambda: len(attempts) == 5)
        assert attempts[3:] == [("c-2", 1, False), ("c-2", 2, False)]
        letters = await asked.letters()
        assert [one.reason for one in letters] == ["no", "max attempts exceeded (2)"]
        assert letters[1].stored.headers[RETRY_COUNT] == 2


async def test_requests_that_nobody_can_handle_are_answered_and_not_kept() -> None:
    asked = Asked()

    @asked.server.handler("add")
    async def add(data: Any) -> Any:
        return data

    known = {"command": "OTHER", "registeredCommands": ["ADD"]}
    text = "No handler registered for command: OTHER"
    async with asked.running():
        unknown = await asked.reply("other")
        assert unknown == {"error": {"code": "ValidationError", "message": text, "details": known}}
        for command, body, said in (
            ("add", b"{", "not valid JSON"),
            ("add", b"", "the body is empty"),
            (None, b"1", "No handler registered for command: "),
        ):
            reply = await asked.reply(command, body)
            assert reply["error"]["code"] == "ValidationError"
            assert said in reply["error"]["message"]
        assert await asked.letters() == []
        for command, body in (("other", b"1"), ("add", b"{")):
            await asked.send(command, body, reply_to="")
        await wait_for(lambda: asked.server.metrics().messages_dead_lettered == 2)
        assert len(await asked.letters()) == 2, "nobody was told of these"


async def test_nothing_is_a_result_too_and_errors_within_results_are_no_errors() -> None:
    asked = Asked()
    asked.server.register("nothing", lambda: None)
    asked.server.register("error", lambda: {"error": "none"})
    async with asked.running():
        assert await asked.reply("nothing") is None
        assert await asked.reply("error", b"null") == {"error": "none"}


async def test_a_reply_that_does_not_fit_is_replaced_by_one_that_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked()
    asked.server.register("big", lambda: "x")
    async with asked.running():
        asked.transport.refuses.append(UnstorableError("1 byte is too much"))
        await asked.send("big")
        await wait_for(lambda: len(asked.transport.sent) == 2)
        first, second = asked.transport.sent
        assert first.body == b'"x"'
        told = json.loads(second.body)["error"]
        assert told["code"] == "UnstorableError"
        assert told["message"] == "the reply cannot be sent: 1 byte is too much"
        assert (second.queue, second.properties) == (first.queue, first.properties)
        asked.transport.refuses.append(TransportError("no such address"))
        await asked.send("big")
        await wait_for(lambda: asked.server.metrics().messages_succeeded == 2)
        assert "its caller will time out: no such address" in caplog.text
        assert await asked.letters() == []


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_calls_that_take_long_are_logged(
    sync: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    asked = Asked(slow_call=2, clock=clock)

    def work(data: int) -> int:
        clock.advance(data)
        if fails:
            raise RemoteError("C", "no")
        return data

    async def work_async(data: int) -> int:
        return work(data)

    asked.server.register("work", work if sync else work_async)
    async with asked.running():
        reply = await asked.reply("work", b"1")
        assert ("error" in reply) if fails else (reply == 1)
        assert "took" not in caplog.text
        await asked.reply("work", b"2")
        (line,) = [one for one in caplog.messages if "took" in one]
        assert line == "WORK of rpc.q took 2 s (request m-1)"


async def test_another_command_with_the_same_id_is_no_duplicate() -> None:
    asked, ran = Asked(deduplication=Deduplication()), list[str]()

    @asked.server.handler("a")
    async def one() -> str:
        ran.append("a")
        return "a"

    @asked.server.handler("b")
    async def other() -> str:
        ran.append("b")
        return "b"

    async with asked.running():
        for command in ("a", "A", "b"):
            assert await asked.reply(command) == command.lower()
        assert ran == ["a", "b"]
        assert asked.server.metrics().duplicates == 1


# -- errors as they are written and read ---------------------------------------------------------


def test_an_error_is_written_whatever_it_has_in_it() -> None:
    code: Any = 7
    assert json.loads(error_reply(code, "no")) == {"error": {"code": "7", "message": "no"}}
    for details in (object(), {1: object()}, float):
        assert json.loads(error_reply("C", "no", details)) == {
            "error": {"code": "C", "message": "no"}
        }
    assert json.loads(error_reply("C", "no", [0]))["error"]["details"] == [0]
    assert json.loads(error_reply("C", "\ud800"))["error"]["code"] == "C"


def test_a_reply_is_read_in_the_type_that_the_caller_wants_or_says_why_not() -> None:
    assert read_reply(delivered(b'{"error":1}'), None, "ADD") == {"error": 1}
    assert read_reply(delivered(b"12"), lambda body: int(body) + 1, "ADD") == 13
    with pytest.raises(InvalidMessageError, match=r"the reply to ADD cannot be read \(.*\): x+$"):
        read_reply(delivered(b"x" * 200), None, "ADD")
    error = error_reply("C", "no", 1)
    with pytest.raises(RemoteError) as caught:
        read_reply(delivered(error), None, "ADD")
    assert (caught.value.code, caught.value.remote_message) == ("C", "no")
    assert caught.value.details == 1
    for body in (error, b"1"):
        with pytest.raises(InvalidMessageError, match="a header is broken"):
            read_reply(delivered(body, problem="a header is broken"), None, "ADD")
