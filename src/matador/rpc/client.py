"""``RpcClient``: calls commands of a server, and waits for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from matador.codec.data import data_decoder, encode_data
from matador.errors import (
    ConfigurationError,
    ConnectionFailedError,
    ConnectionLostError,
    InvalidMessageError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    RpcTimeoutError,
    SendTimeoutError,
    SendUnconfirmedError,
    ShuttingDownError,
)
from matador.model.arguments import check_arguments
from matador.model.message import ConnectionState, Message, Properties
from matador.model.options import Seconds, optional_whole_number, seconds, whole_number
from matador.policy.backoff import Backoff, Exponential
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.rpc.replies import ReplyRouter, Waiting
from matador.rpc.wire import CORRELATION_ID, command_name, non_empty, read_reply
from matador.runtime.blocking import Blocking, blocking
from matador.runtime.facts import Way
from matador.runtime.message_service import MessageService, check_ids, metadata_headers
from matador.runtime.service import ServiceOptions
from matador.transports.base import Transport

T = TypeVar("T")

_MOST_DECODERS = 1000
_NO_REPLY = (RpcTimeoutError, ConnectionLostError, NotConnectedError, ConnectionFailedError)


@dataclass(frozen=True, slots=True)
class CallRetry:
    """Calls again after a timeout or a lost connection, with the same message id.

    The call may have run although there was no reply. A server with ``deduplication`` runs it once
    and sends the same reply again.

    Args:
        attempts: the total number of attempts, including the first.
        backoff: the delays between the attempts.
        when: decides whether to call again, as a function of the error and of the number of the
            attempt. By default, after a timeout and when the connection was lost.

    Raises:
        ConfigurationError: an option is invalid.

    Example:
        >>> CallRetry(attempts=5, backoff=Exponential(0.5)).backoff.wait(attempt=2)
        1.0
    """

    attempts: int = 3
    backoff: Backoff = Exponential(0.1, max_delay=5.0)  # noqa: RUF009 - frozen
    when: Callable[[Exception, int], bool] | None = None

    def __post_init__(self) -> None:
        whole_number(self.attempts, "CallRetry: attempts", minimum=1)
        if not callable(getattr(self.backoff, "wait", None)):
            raise ConfigurationError(
                f"CallRetry: backoff must be Fixed(…) or Exponential(…), got {self.backoff!r}"
            )
        if self.when is not None and not callable(self.when):
            raise ConfigurationError(f"CallRetry: when must be a function, got {self.when!r}")

    def again(self, error: Exception, attempt: int) -> bool:
        """Whether to call again after ``error`` in the attempt with that number.

        Example:
            >>> CallRetry(attempts=2).again(RpcTimeoutError("no reply"), attempt=2)
            False
        """
        if attempt >= self.attempts:
            return False
        if self.when is not None:
            return bool(self.when(error, attempt))
        return isinstance(error, _NO_REPLY)


class _CallOptions(TypedDict, total=False):
    """Options of ``RpcClient.call``, for its overloads."""

    timeout: Seconds | None
    correlation_id: str | None
    metadata: Mapping[str, object] | None
    message_id: str | None
    priority: int | None


class RpcClient(MessageService):
    """Calls the commands of one server, or of several that share a queue.

    Any number of calls may be in flight. Used from one event loop.

    Args:
        url: the URL of the broker, or a transport. A transport object is connected, but never
            disconnected.
        queue: the name of the server's queue. The server creates it.
        timeout: seconds that a call waits for its reply.
        retry: whether a call without a reply is made again; None: never.
        recovery: what happens to requests without a connection. By default, they are buffered.
        circuit_breaker: fails calls at once while the broker keeps failing; None: none.
        **options: see ``ServiceOptions``.

    Raises:
        ConfigurationError: an argument is wrong.

    Example:
        >>> async with RpcClient("amqp://localhost", queue="maths") as client:
        ...     total = await client.call("ADD", Add(1, 2), timeout=5, result_type=int)
        ...     await client.notify("LOG", {"text": "hi"})
    """

    _way: ClassVar[Way] = "rpc"

    def __init__(
        self,
        url: str | Transport,
        *,
        queue: str,
        timeout: Seconds = 30.0,
        retry: CallRetry | None = None,
        recovery: Recovery | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        **options: Unpack[ServiceOptions],
    ) -> None:
        self._queue = non_empty(queue, "RpcClient: queue")
        super().__init__(f"RpcClient({queue!r})", url, recovery=recovery, **options)
        self._timeout = seconds(timeout, f"{self._where}: timeout", minimum=0.001)
        if retry is not None and not isinstance(retry, CallRetry):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"{self._where}: retry must be a CallRetry, got {retry!r}; write "
                f"retry=CallRetry(attempts=3)"
            )
        check_arguments(self._where, circuit_breaker=circuit_breaker)
        self._retry = retry
        self._breaker = circuit_breaker
        self._replies: ReplyRouter | None = None
        self._pending: set[Waiting] = set()
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def __repr__(self) -> str:
        return f"{self._where[:-1]}, {self.health().status})"

    _elsewhere = "use client.sync(), which any thread may call, or another one for this loop"

    def another(self) -> Self:
        other = super().another()
        other._replies, other._pending, other._decoders = None, set(), {}
        return other

    def sync(self) -> SyncRpcClient:
        """The blocking form of the client, for code without an event loop. See ``Blocking``.

        Example:
            >>> total = client.sync().call("ADD", Add(1, 2), timeout=5, result_type=int)
        """
        return self._blocking(SyncRpcClient)

    # -- life cycle -------------------------------------------------------------------------------

    async def _open(self, transport: Transport) -> None:
        self._replies = await ReplyRouter.open(transport)
        self._at_end("stop receiving replies", self._close_replies)
        self._open_outbox(transport, recovery=self._recovery, breaker=self._breaker)

    def _receiving_stopped(self) -> None:
        """Pending calls fail at once; notifications are still confirmed."""
        for call in list(self._pending):
            call.fail(ShuttingDownError(f"{self._where} was shut down before the reply came"))

    async def _close_replies(self) -> None:
        replies, self._replies = self._replies, None
        self._receiving_stopped()  # for calls that were made while it was shutting down
        if replies is not None:
            await replies.close()

    # -- calling ----------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        command: str,
        data: object = None,
        *,
        result_type: type[T],
        **options: Unpack[_CallOptions],
    ) -> T: ...

    @overload
    async def call(
        self,
        command: str,
        data: object = None,
        *,
        result_type: Any = Any,
        **options: Unpack[_CallOptions],
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
        priority: int | None = None,
    ) -> Any:
        """Call a command and return its result. If the call is canceled, its reply is dropped.

        Args:
            command: the command, in upper or lower case.
            data: the argument of the handler: plain data or an instance of a payload class.
            result_type: the type of the result, which is checked; plain data by default.
            timeout: seconds to wait for the reply; None: the timeout of the client.
            correlation_id: an id for tracing, which the handler sees; a new one by default.
            metadata: headers for the handler: texts and whole numbers.
            message_id: the id of the request, by which servers detect duplicates; a new one by
                default.
            priority: requests with a higher one are handled first, where the queue has priorities.

        Example:
            >>> await client.call("ADD", Add(1, 2), timeout=5, result_type=int)
            3

        Raises:
            RemoteError: the handler failed, or there is none.
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
        check_ids(self._where, message_id, correlation_id)
        self._may_send()

        def call(more: Mapping[str, object] | None) -> Awaitable[Any]:
            request = self._request(name, data, more, message_id, priority)
            return self._call(name, request, limit, decode, correlation_id, is_new=not message_id)

        return await self._sending("call", name, self._queue, metadata, call)

    async def _call(
        self,
        name: str,
        request: Message,
        limit: float,
        decode: Callable[[bytes], Any] | None,
        correlation_id: str | None,
        *,
        is_new: bool,
    ) -> Any:
        self._may_send()
        assert self._replies is not None, "opened before the outbox, and closed after it"
        # The correlation id of the request only identifies its reply.
        unique = request.id if is_new else self._clock.new_id()
        if correlation_id is not None:
            if self._replies.is_free(correlation_id):
                unique = correlation_id
            else:
                headers = {**request.headers, CORRELATION_ID: correlation_id}
                request = msgspec.structs.replace(request, headers=headers)
        attempt = 1
        while True:
            try:
                return await self._attempt(name, request, unique, limit, decode)
            except Exception as error:
                if self._retry is None or not self._retry.again(error, attempt):
                    raise
                pause = self._retry.backoff.wait(attempt)
            attempt += 1
            await asyncio.sleep(pause)

    async def notify(
        self,
        command: str,
        data: object = None,
        *,
        correlation_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        message_id: str | None = None,
        priority: int | None = None,
    ) -> str:
        """Send a command without waiting for its result; return the id of the request.

        Returns once the broker has stored the request. The server's ``AckStrategy`` decides about
        retries.

        Example:
            >>> id = await client.notify("LOG", {"text": "hi"})

        Raises:
            InvalidMessageError: the data cannot be written.
            QueueNotFoundError: there is no such queue: no server has ever been started.
            TransportError: the request was not sent; see its type.
        """
        name = command_name(command, self._where)
        check_ids(self._where, message_id, correlation_id)
        self._may_send()

        async def send(more: Mapping[str, object] | None) -> str:
            request = self._request(name, data, more, message_id, priority)
            properties = Properties(type=name, correlation_id=correlation_id or request.id)
            request = msgspec.structs.replace(request, properties=properties)
            try:
                await self._send(self._parcel(request, name))
            except QueueNotFoundError as error:
                raise self._unserved(error) from error
            return request.id

        return await self._sending("send", name, self._queue, metadata, send)

    def _request(
        self,
        command: str,
        data: object,
        metadata: Mapping[str, object] | None,
        message_id: str | None,
        priority: int | None,
    ) -> Message:
        where = f"{self._where}: {command}"
        optional_whole_number(priority, f"{where}: priority", minimum=0)
        body = encode_data(data, f"{where}: the data", InvalidMessageError)
        headers = metadata_headers(metadata, where)
        id_ = message_id or self._clock.new_id()
        return Message(id_, self._queue, body, headers, priority=priority)

    async def _attempt(
        self,
        command: str,
        request: Message,
        correlation_id: str,
        limit: float,
        decode: Callable[[bytes], Any] | None,
    ) -> Any:
        """Make a call once."""
        outbox, replies = self._may_send(), self._replies
        assert replies is not None, "opened before the outbox, and closed after it"
        properties = Properties(
            reply_to=replies.address,
            correlation_id=correlation_id,
            type=command,
            expires_at=self._clock.time() + limit,
            transient=True,
        )
        loop = asyncio.get_running_loop()
        call = Waiting(loop.create_future())
        self._pending.add(call)
        replies.waiting[correlation_id] = call
        request = msgspec.structs.replace(request, properties=properties)
        sending = outbox.begin(self._parcel(request, command))
        sending.add_done_callback(lambda sent: self._sent(call, sent))
        timer = loop.call_later(limit, self._expire, call, command, limit)
        try:
            return read_reply(await call.reply, decode, command)
        finally:
            timer.cancel()
            if not sending.done():
                sending.cancel()
            self._pending.discard(call)
            if replies.waiting.get(correlation_id) is call:
                del replies.waiting[correlation_id]

    def _sent(self, call: Waiting, sent: asyncio.Future[int]) -> None:
        """The outcome of sending a request is known."""
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            call.sent = True
            self._connection_state_changed(self._broker.transport.state)  # it may be lost now
        elif isinstance(error, SendTimeoutError):
            call.fail(_caused(RpcTimeoutError(f"{self._queue}: {error}"), error))
        elif isinstance(error, SendUnconfirmedError):
            call.fail(_caused(ConnectionLostError(f"{self._queue}: {error}"), error))
        elif isinstance(error, QueueNotFoundError):
            call.fail(self._unserved(error))
        else:
            call.fail(error)

    def _unserved(self, error: QueueNotFoundError) -> MatadorError:
        """The error for a queue that no server has created. A client has no topology."""
        return _caused(
            QueueNotFoundError(
                f"{self._where}: no server has created the queue {self._queue!r}; start one with "
                f"RpcServer(…, queue={self._queue!r}) on the same broker, or correct the name"
            ),
            error,
        )

    def _expire(self, call: Waiting, command: str, limit: float) -> None:
        where = "" if call.sent else "; the request was not sent, or not confirmed"
        call.fail(RpcTimeoutError(f"{self._queue}: no reply to {command} in {limit:g} s{where}"))

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

    def _connection_state_changed(self, state: ConnectionState) -> None:
        """Fail calls whose connection was lost: their replies will not arrive."""
        if state.status != "connected":
            lost = (
                f"{self._queue}: the connection was lost before the reply came, so the call may or "
                f"may not have run"
            )
            for call in list(self._pending):
                if call.sent:
                    call.fail(_caused(ConnectionLostError(lost), state.error))

    # -- state -----------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._queue

    @property
    def pending(self) -> int:
        """The number of calls that wait for their reply."""
        return len(self._pending)


def _caused(error: MatadorError, cause: BaseException | None) -> MatadorError:
    error.__cause__ = cause
    return error


class SyncRpcClient(Blocking[RpcClient]):
    """``client.sync()``: a client for code without an event loop. See ``Blocking``.

    Example:
        >>> maths = RpcClient("amqp://localhost", queue="maths").sync()
        >>> total = maths.call("ADD", Add(1, 2), timeout=5, result_type=int)
    """

    _called = "client"

    call = blocking(RpcClient.call)
    notify = blocking(RpcClient.notify)
