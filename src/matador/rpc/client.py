"""``RpcClient``: calls commands of a server, and waits for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from matador.codec.data import data_decoder, encode_data
from matador.errors import (
    ConfigurationError,
    ConnectionLostError,
    InvalidMessageError,
    MatadorError,
    NotStartedError,
    RemoteError,
    RpcTimeoutError,
    SendTimeoutError,
    SendUnconfirmedError,
    ShuttingDownError,
)
from matador.messages.connection import Connection
from matador.messages.health import MessagingHealth
from matador.messages.metadata import metadata_headers
from matador.messages.outbox import Outbox
from matador.messages.recording import recording_of, traced_send
from matador.model.message import ConnectionState, Delivery, Headers, Message, Properties
from matador.model.options import Seconds, seconds
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.rpc.metrics import RpcClientMetrics
from matador.rpc.replies import Replies
from matador.rpc.retry import CallRetry
from matador.rpc.wire import CORRELATION_ID, command_name, read_reply
from matador.runtime.deadline import Deadline
from matador.runtime.recorder import Recorder
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock

T = TypeVar("T")

_MOST_DECODERS = 1000
_NO_CONNECTION = ConnectionState("disconnected")


class RpcClient:
    """Calls the commands of one server, or of several that share a queue.

    Any number of calls may be under way at once. Used from one event loop.

    Args:
        url: the URL of the broker, or a transport. A transport that is given is connected, and
            never disconnected.
        queue: the name of the server's queue. The server creates it.
        timeout: seconds that a call waits for its reply.
        retry: whether a call without a reply is made again; None: never.
        recovery: what happens to requests while there is no connection. By default they wait.
        circuit_breaker: fails calls at once while the broker keeps failing; None: none.
        journal: records what is sent and handled, for the data pipeline:
            ``matador.observe.Journal``. None: nothing is recorded.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> async with RpcClient("amqp://localhost", queue="maths") as client:
        ...     total = await client.call("ADD", Add(1, 2), timeout=5, result_type=int)
        ...     await client.notify("LOG", {"text": "hi"})
    """

    def __init__(
        self,
        url: str | Transport,
        *,
        queue: str,
        timeout: Seconds = 30.0,
        retry: CallRetry | None = None,
        recovery: Recovery | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        journal: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(queue, str) or not queue.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"RpcClient: queue must be a non-empty text, got {queue!r}")
        where = self._where = f"RpcClient({queue!r})"
        self._queue = queue
        self._timeout = seconds(timeout, f"{where}: timeout", minimum=0.001)
        self._retry = retry
        self._recovery = recovery
        self._breaker = circuit_breaker
        self._clock = clock or SystemClock()
        self._recording = recording_of(journal, "rpc", where, self._clock)
        self._connection = Connection(url, where, recovery)
        self._changing = asyncio.Lock()
        self._outbox: Outbox | None = None
        self._replies: Replies | None = None
        self._end_observing: Callable[[], None] = lambda: None
        self._pending: set[_Call] = set()
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}
        self._metrics = RpcClientMetrics()

    def __repr__(self) -> str:
        return f"{self._where[:-1]}, {self.health().status})"

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Idempotent.

        Raises:
            ConnectionFailedError: the broker cannot be reached, or refuses.
            UnsupportedError: the transport cannot receive replies.
        """
        async with self._changing:
            if self._outbox is not None:
                return
            self._end_observing = await self._connection.open(self)
            try:
                transport = self._connection.transport
                self._replies = await Replies.open(transport)
                if self._recording is not None:
                    self._recording.start(transport.name)
                self._outbox = Outbox(
                    transport,
                    recovery=self._recovery,
                    breaker=self._breaker,
                    clock=self._clock,
                    recording=self._recording,
                )
            except BaseException:
                self._end_observing()
                await self._connection.close()
                raise

    async def close(self, timeout: Seconds = 5.0) -> None:
        """Fail the calls that wait, and disconnect. Idempotent.

        Notifications that were not confirmed yet are waited for, for at most ``timeout`` seconds.
        Those that are still not confirmed fail with ``SendUnconfirmedError``: they may be stored.
        """
        limit = seconds(timeout, f"{self._where} close: timeout")
        async with self._changing:
            outbox, replies = self._outbox, self._replies
            if outbox is None or replies is None:
                return
            self._outbox = self._replies = None
            for call in list(self._pending):
                call.fail(ShuttingDownError(f"{self._where} was closed before the reply came"))
            self._end_observing()
            deadline = Deadline(limit, self._where)
            try:
                await outbox.close(limit)
                if self._recording is not None:
                    await self._recording.stop()
                await replies.close()
            finally:
                await self._connection.close(deadline)

    # -- calling ----------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        command: str,
        data: object = None,
        *,
        result_type: type[T],
        timeout: Seconds | None = None,
        correlation_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        message_id: str | None = None,
    ) -> T: ...

    @overload
    async def call(
        self,
        command: str,
        data: object = None,
        *,
        result_type: Any = Any,
        timeout: Seconds | None = None,
        correlation_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        message_id: str | None = None,
    ) -> Any: ...

    async def call(
        self,
        command: str,
        data: object = None,
        *,
        result_type: Any = Any,
        timeout: Seconds | None = None,
        correlation_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Call a command and return its result. Cancelling the call forgets it.

        Args:
            command: the command, in upper or lower case.
            data: what the handler takes: plain data or an instance of a payload class.
            result_type: the type of the result, which is checked; plain data by default.
            timeout: seconds to wait for the reply; None: as the client says.
            correlation_id: an id for tracing, which the handler sees; a new one by default.
            metadata: headers for the handler: texts and whole numbers.
            message_id: the id of the request, by which servers find duplicates; a new one by
                default.

        Raises:
            RemoteError: the handler has failed, or there is none.
            RpcTimeoutError: there was no reply in time.
            ConnectionLostError: the connection was lost; the call may or may not have run.
            InvalidMessageError: the data cannot be written, or the result is not of its type.
            QueueNotFoundError: there is no such queue: no server has ever been started.
            TransportError: the request was not sent; see its type.
        """
        limit = self._timeout
        if timeout is not None:
            limit = seconds(timeout, f"{self._where}: timeout", minimum=0.001)
        decode = None if result_type is Any else self._decoder(result_type)
        name = command_name(command, self._where)
        with traced_send(self._recording, "call", name, self._queue, metadata) as more:
            return await self._call(name, data, limit, decode, correlation_id, more, message_id)

    async def _call(
        self,
        name: str,
        data: object,
        limit: float,
        decode: Callable[[bytes], Any] | None,
        correlation_id: str | None,
        metadata: Mapping[str, object] | None,
        message_id: str | None,
    ) -> Any:
        request = self._request(name, data, metadata, message_id)
        request = self._to_be_answered(request, correlation_id, message_id is not None)
        attempt = 1
        while True:
            try:
                return await self._attempt(name, request, limit, decode)
            except Exception as error:
                if self._retry is None or not self._retry.again(error, attempt):
                    raise
                pause = self._retry.delay_after(attempt)
            attempt += 1
            self._metrics.retries += 1
            await asyncio.sleep(pause)

    async def notify(
        self,
        command: str,
        data: object = None,
        *,
        correlation_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        message_id: str | None = None,
    ) -> str:
        """Have a command run without waiting for its result; returns the id of the request.

        Returns once the broker has stored the request. A handler that fails is tried again as the
        server's ``AckStrategy`` says.

        Raises:
            InvalidMessageError: the data cannot be written.
            QueueNotFoundError: there is no such queue: no server has ever been started.
            TransportError: the request was not sent; see its type.
        """
        name = command_name(command, self._where)
        outbox, _ = self._opened()
        with traced_send(self._recording, "send", name, self._queue, metadata) as more:
            request = self._request(name, data, more, message_id)
            properties = Properties(type=name, correlation_id=correlation_id or request.id)
            await outbox.begin(_with(request, properties))
        self._metrics.notified += 1
        return request.id

    def _request(
        self,
        command: str,
        data: object,
        metadata: Mapping[str, object] | None,
        message_id: str | None,
    ) -> Message:
        where = f"{self._where}: {command}"
        body = encode_data(data, f"{where}: the data", InvalidMessageError)
        headers = metadata_headers(metadata, where)
        return Message(message_id or self._clock.new_id(), self._queue, body, headers)

    def _to_be_answered(
        self, request: Message, correlation_id: str | None, own_id: bool
    ) -> Message:
        """The request with a correlation id by which nothing but its reply is found."""
        _, replies = self._opened()
        headers: Headers = request.headers
        if correlation_id is None:
            unique = self._clock.new_id() if own_id else request.id
        elif replies.is_free(correlation_id):
            unique = correlation_id
        else:
            unique = self._clock.new_id()
            headers = {**headers, CORRELATION_ID: correlation_id}
        return _with(request, Properties(correlation_id=unique), headers)

    async def _attempt(
        self,
        command: str,
        request: Message,
        limit: float,
        decode: Callable[[bytes], Any] | None,
    ) -> Any:
        """Make a call once."""
        outbox, replies = self._opened()
        given = request.properties
        assert given is not None
        assert given.correlation_id is not None
        properties = Properties(
            reply_to=replies.address,
            correlation_id=given.correlation_id,
            type=command,
            expires_at=self._clock.time() + limit,
            transient=True,
        )
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future())
        self._pending.add(call)
        replies.waiting[given.correlation_id] = call
        sending = outbox.begin(_with(request, properties))
        sending.add_done_callback(lambda sent: self._sent(call, sent))
        timer = loop.call_later(limit, self._expire, call, command, limit)
        metrics = self._metrics
        metrics.calls += 1
        try:
            result = read_reply(await call.reply, decode, command)
            metrics.succeeded += 1
            return result
        except BaseException as error:
            self._count(error)
            raise
        finally:
            timer.cancel()
            if not sending.done():
                sending.cancel()
            self._pending.discard(call)
            if replies.waiting.get(given.correlation_id) is call:
                del replies.waiting[given.correlation_id]

    def _sent(self, call: _Call, sent: asyncio.Future[int]) -> None:
        """The outcome of sending a request is known."""
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            call.sent = True
            if self._state.status != "connected":  # lost before anybody could know it was sent
                call.fail(_lost(self._queue, self._state))
        elif isinstance(error, SendTimeoutError):
            call.fail(_caused(RpcTimeoutError(f"{self._queue}: {error}"), error))
        elif isinstance(error, SendUnconfirmedError):
            call.fail(_caused(ConnectionLostError(f"{self._queue}: {error}"), error))
        else:
            call.fail(error)

    def _expire(self, call: _Call, command: str, limit: float) -> None:
        where = "" if call.sent else "; the request was not sent, or not confirmed"
        call.fail(RpcTimeoutError(f"{self._queue}: no reply to {command} in {limit:g} s{where}"))

    def _count(self, error: BaseException) -> None:
        metrics = self._metrics
        match error:
            case RemoteError():
                metrics.remote_errors += 1
            case RpcTimeoutError():
                metrics.timeouts += 1
            case ConnectionLostError():
                metrics.connection_losses += 1
            case InvalidMessageError():
                metrics.unreadable += 1
            case asyncio.CancelledError():
                metrics.cancelled += 1
            case _:
                metrics.not_sent += 1

    def _decoder(self, kind: Any) -> Callable[[bytes], Any]:
        try:
            found = self._decoders.get(kind)
        except TypeError:  # it cannot be hashed
            return data_decoder(kind, f"{self._where}: result_type", ConfigurationError)
        if found is None:
            found = data_decoder(kind, f"{self._where}: result_type", ConfigurationError)
            if len(self._decoders) < _MOST_DECODERS:
                self._decoders[kind] = found
        return found

    def _opened(self) -> tuple[Outbox, Replies]:
        outbox, replies = self._outbox, self._replies
        if outbox is None or replies is None:
            raise NotStartedError(f"{self._where} is not started; use `async with`, or start()")
        return outbox, replies

    # -- the connection ---------------------------------------------------------------------------

    @property
    def _state(self) -> ConnectionState:
        try:
            return self._connection.transport.state
        except NotStartedError:
            return _NO_CONNECTION

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """See ``TransportObserver``. Replies to what was sent before will not come any more."""
        if state.status != "connected":
            for call in list(self._pending):
                if call.sent:
                    call.fail(_lost(self._queue, state))

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """See ``TransportObserver``."""

    # -- what it looks like -----------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def pending(self) -> int:
        """How many calls wait for their reply."""
        return len(self._pending)

    def health(self) -> MessagingHealth:
        """How it is doing."""
        outbox = self._outbox
        if outbox is None:
            return MessagingHealth(_NO_CONNECTION)
        return MessagingHealth(self._state, circuit=outbox.circuit, buffered=outbox.buffered)

    def metrics(self) -> RpcClientMetrics:
        """What it has done so far."""
        return replace(self._metrics)


class _Call:
    """A call that waits for its reply."""

    __slots__ = ("reply", "sent")

    def __init__(self, reply: asyncio.Future[Delivery]) -> None:
        self.reply = reply
        self.sent = False
        """The broker has confirmed the request."""

    def answered(self, reply: Delivery) -> None:
        """See ``Waiting``."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: BaseException) -> None:
        """There will be no reply."""
        if not self.reply.done():
            self.reply.set_exception(error)


def _with(request: Message, properties: Properties, headers: Headers | None = None) -> Message:
    return Message(
        request.id,
        request.queue,
        request.body,
        request.headers if headers is None else headers,
        properties=properties,
    )


def _lost(queue: str, state: ConnectionState) -> ConnectionLostError:
    error = ConnectionLostError(
        f"{queue}: the connection was lost before the reply came, so the call may or may not "
        f"have run"
    )
    error.__cause__ = state.error
    return error


def _caused(error: MatadorError, cause: BaseException) -> MatadorError:
    error.__cause__ = cause
    return error
