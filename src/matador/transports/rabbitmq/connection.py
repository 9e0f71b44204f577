"""An AMQP connection and its channels: pika's, with a shortcut for frames sent once per message.

All private parts of pika that we rely on are used here. The tests send messages through each of
them, so that a version of pika that changes one is noticed.
"""

# pika's classes are only partly typed, and its private parts not at all:
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import builtins
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, Self

import pika
from pika import exceptions as pika_errors
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.heartbeat import HeartbeatChecker

from matador.errors import NotConnectedError, TimeoutError
from matador.transports.kit.options import tls_context
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.errors import connection_failed, translate
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpObject, AmqpQueue

log = logging.getLogger("matador.rabbitmq")

# pika logs seven errors for each connection that is refused. Its errors are translated, and logged
# once, by Matador. An application that gives pika's logger a level sees pika's own lines.
if (_pika := logging.getLogger("pika")).level == logging.NOTSET:
    _pika.setLevel(logging.CRITICAL)

_CALL_TIMEOUT = 20.0
_CLOSE_TIMEOUT = 3.0
_READ_SIZE = 256 * 1024


class Sink(Protocol):
    """Takes the frames of one channel straight from the socket."""

    def take(self, kind: int, buffer: bytes, at: int, size: int) -> bool:
        """Take a frame whose payload starts at ``at``; False leaves it to pika."""
        ...


class _Heartbeat(HeartbeatChecker):
    """Detects a dead connection within two heartbeats; pika adds five seconds to each."""

    def __init__(self, connection: Any, timeout: int) -> None:
        super().__init__(connection, timeout)
        self.stop()
        self._check_interval = timeout
        self._start_send_timer()
        self._start_check_timer()


class AmqpConnection(AsyncioConnection):
    """One AMQP connection. ``lost`` gets the reason when either side closes it.

    Each frame is offered to the sink of its channel first. pika handles everything else.
    """

    _socket: Any = None

    def __init__(self, address: RabbitMQAddress, host: str, port: int, role: str) -> None:
        loop = asyncio.get_running_loop()
        self.host = host
        self.port = port
        self.sinks: dict[int, Sink] = {}
        self.lost: asyncio.Future[BaseException] = loop.create_future()
        self.blocked: str | None = None
        """Why the broker accepts no messages; None if it does."""
        self.on_blocked: Callable[[], None] = lambda: None
        self._ready: asyncio.Future[None] = loop.create_future()
        super().__init__(
            _parameters(address, host, port, role),
            lambda _: _resolve(self._ready, None),
            self._connecting_failed,
            lambda _, reason: _resolve(self.lost, reason),
            custom_ioloop=loop,
        )
        self.add_on_connection_blocked_callback(self._on_publishers_blocked)
        self.add_on_connection_unblocked_callback(self._on_publishers_unblocked)

    @classmethod
    async def open(cls, address: RabbitMQAddress, host: str, port: int, role: str) -> Self:
        """Connect to one host.

        Raises:
            ConnectionFailedError: the host cannot be reached, or refuses the connection.
        """
        where = f"{host}:{port}"
        try:
            connection = cls(address, host, port, role)
        except (OSError, ssl.SSLError) as error:  # a TLS file that does not exist
            raise connection_failed(error, where) from error
        try:
            async with asyncio.timeout(2 * address.connect_timeout):
                await connection._ready
        except builtins.TimeoutError as error:
            connection.cut()
            raise connection_failed(OSError("no response in time"), where) from error
        except BaseException:
            connection.cut()
            raise
        transport: Any = connection._transport
        transport._MAX_RECV_BYTES = _READ_SIZE  # pika reads 4096 bytes at a time
        if not isinstance(transport._sock, ssl.SSLSocket):
            connection._socket = transport._sock
        return connection

    @property
    def frame_max(self) -> int:
        """The size of the largest frame in bytes, as agreed with the server."""
        return int(self.params.frame_max)

    @property
    def server_version(self) -> str:
        """The version of the server."""
        properties: Any = self.server_properties or {}
        return str(properties.get("version", "?"))

    def write(self, data: bytes) -> None:
        """Send whole frames. They are in the kernel's buffer on return, if it has room.

        Raises:
            NotConnectedError: the connection is not open.
        """
        if not self.is_open or self.lost.done():
            raise NotConnectedError("the connection was lost")
        self.bytes_sent += len(data)
        transport: Any = self._transport
        if self._socket is not None and transport.get_write_buffer_size() == 0:
            try:
                sent = self._socket.send(data)
            except OSError:  # no room, or the connection is broken: pika finds out
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._adapter_emit_data(data)

    async def disconnect(self) -> None:
        """Close the connection properly, or cut it if the server does not answer. Idempotent."""
        if self.is_open:
            self.close()
        if not self.lost.done():
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await asyncio.shield(self.lost)
            except builtins.TimeoutError:
                self.cut()
                await asyncio.wait([self.lost], timeout=1.0)  # until the socket is closed

    def cut(self) -> None:
        """End the connection without closing it properly. Idempotent."""
        if self.is_closed:
            return
        try:
            if self._transport is None:
                self.close()  # still connecting: ends the attempt
            else:
                self._terminate_stream(
                    pika_errors.StreamLostError("closed because the server did not respond")
                )
        except pika_errors.AMQPError:
            log.debug("the connection was already closed")

    # -- called by pika ---------------------------------------------------------------------------

    def _create_heartbeat_checker(self) -> HeartbeatChecker | None:
        interval: Any = self.params.heartbeat
        return _Heartbeat(self, int(interval)) if interval else None

    def _on_data_available(self, data_in: bytes) -> None:
        sinks = self.sinks
        if not sinks:
            super()._on_data_available(data_in)
            return
        waiting: bytes = self._frame_buffer
        buffer = waiting + data_in if waiting else data_in
        at, end = 0, len(buffer)
        taken = 0
        start = frames.frame_start
        while end - at >= frames.OVERHEAD:
            kind, channel, size = start(buffer, at)
            next_ = at + size + frames.OVERHEAD
            if next_ > end:
                break
            sink = sinks.get(channel)
            if sink is not None and sink.take(kind, buffer, at + 7, size):
                taken += next_ - at
            else:
                self._frame_buffer = b""
                super()._on_data_available(buffer[at:next_])
                if not self.is_open:
                    # Closing: everything that is left is for pika.
                    self.bytes_received += taken
                    super()._on_data_available(buffer[next_:])
                    return
            at = next_
        self._frame_buffer = buffer[at:]
        self.bytes_received += taken  # checked by the heartbeat

    def _connecting_failed(self, _: object, error: BaseException | str) -> None:
        if not self._ready.done():
            reason = error if isinstance(error, BaseException) else OSError(error)
            self._ready.set_exception(connection_failed(reason, f"{self.host}:{self.port}"))

    def _on_publishers_blocked(self, _: object, method: Any) -> None:
        self.blocked = str(method.method.reason) or "no reason given"
        log.warning("RabbitMQ blocks publishers: %s", self.blocked)
        self.on_blocked()

    def _on_publishers_unblocked(self, _: object, __: object) -> None:
        self.blocked = None
        log.info("RabbitMQ accepts messages again")
        self.on_blocked()


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _parameters(
    address: RabbitMQAddress, host: str, port: int, role: str
) -> pika.ConnectionParameters:
    tls = None
    if address.tls:
        tls = pika.SSLOptions(tls_context(address), address.tls_server_name or host)
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=round(address.heartbeat),
        socket_timeout=address.connect_timeout,
        stack_timeout=2 * address.connect_timeout,
        ssl_options=tls,
        client_properties={"product": "Matador", "connection_name": f"matador {role}"},
    )


class AmqpChannel:
    """A channel whose calls are awaited. The broker closes it when one of them fails.

    ``on_closed`` is called once, with the reason, when either side closes the channel;
    ``on_cancel`` when the broker cancels a consumer.
    """

    def __init__(self, connection: AmqpConnection, raw: Any) -> None:
        self.connection = connection
        self.number = int(raw.channel_number)
        self.error: BaseException | None = None
        self.on_closed: Callable[[BaseException], None] = lambda _: None
        self.on_cancel: Callable[[], None] = lambda: None
        self._raw: Any = raw  # pika's types are too loose to be useful
        self._waiting: set[asyncio.Future[Any]] = set()
        self._gone = asyncio.Event()
        raw.add_on_close_callback(self._closed)
        raw.add_on_cancel_callback(self._cancelled)
        # A connection that breaks does not always close its channels first.
        connection.lost.add_done_callback(self._connection_lost)

    @classmethod
    async def open(cls, connection: AmqpConnection, sink: Sink | None = None) -> Self:
        """Open a channel; its frames are offered to ``sink`` first.

        Raises:
            TransportError: the connection is not open, or has no channel left.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        try:
            channel = cls(connection, connection.channel(on_open_callback=on_open))
        except pika_errors.AMQPError as error:
            raise translate(error, "opening a channel") from error
        await channel.wait(opened, "opening a channel")
        if sink is not None:
            connection.sinks[channel.number] = sink
        return channel

    @property
    def is_open(self) -> bool:
        """Whether the channel can be used."""
        return self.error is None and bool(self._raw.is_open)

    def write(self, data: bytes) -> None:
        """Send whole frames of this channel.

        Raises:
            NotConnectedError: the channel is closed.
        """
        if self.error is not None:
            raise NotConnectedError("the channel was closed")
        self.connection.write(data)

    async def declare(self, thing: AmqpObject) -> None:
        """Create an exchange, a queue or a binding unless it exists."""
        match thing:
            case AmqpExchange(name, type_, arguments, durable):
                what, method = f"exchange {name}", "exchange_declare"
                given = {"exchange": name, "exchange_type": type_, "durable": durable}
            case AmqpQueue(name, arguments, _, durable):
                what, method = f"queue {name}", "queue_declare"
                given = {"queue": name, "durable": durable}
            case AmqpBinding(queue, exchange, key, arguments):
                what, method = f"binding of {queue} to {exchange}", "queue_bind"
                given = {"queue": queue, "exchange": exchange, "routing_key": key}
        await self._call(what, method, **given, arguments=arguments)

    async def count_ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready; raise what ``count`` raises."""
        return (await self.count(queue))[0]

    async def count(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue are ready, and how many consumers it has.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        reply = await self._call(f"queue {queue}", "queue_declare", queue, passive=True)
        return int(reply.message_count), int(reply.consumer_count)

    async def confirm(self) -> None:
        """Have the broker confirm every message published here. The confirms go to the sink."""
        await self._call("confirms", "confirm_delivery", _ignore)

    async def consume(self, queue: str, prefetch: int) -> str:
        """Start a consumer with a prefetch of its own and return its tag.

        Its messages go to the sink.
        """
        await self._call("prefetch", "basic_qos", prefetch_count=min(prefetch, 65535))
        reply = await self._call(f"consuming {queue}", "basic_consume", queue, _ignore)
        return str(reply.consumer_tag)

    async def consume_replies(self, queue: str) -> None:
        """Receive replies, which are not acknowledged. They go to the sink."""
        await self._call(f"consuming {queue}", "basic_consume", queue, _ignore, auto_ack=True)

    async def cancel(self, consumer: str) -> None:
        """End a consumer."""
        await self._call("cancelling a consumer", "basic_cancel", consumer)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue with its bindings and messages. Idempotent."""
        await self._call(f"deleting {queue}", "queue_delete", queue)

    async def unbind(self, binding: AmqpBinding) -> None:
        """Remove a binding. Idempotent."""
        what = f"binding of {binding.queue} to {binding.exchange}"
        await self._call(what, "queue_unbind", binding.queue, binding.exchange, binding.key)

    async def purge(self, queue: str) -> int:
        """Delete the messages that are ready; return how many there were."""
        reply = await self._call(f"purging {queue}", "queue_purge", queue)
        return int(reply.message_count)

    async def close(self) -> None:
        """Close the channel; the broker requeues unacknowledged deliveries. Idempotent."""
        if not self.is_open:
            return
        self._raw.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._gone.wait()
        except builtins.TimeoutError:
            log.warning("a channel did not close in time")
            self._closed(None, pika_errors.ChannelClosedByClient(0, "closed"))

    def close_soon(self) -> None:
        """Close the channel without waiting for the broker's answer. Idempotent."""
        if self.is_open:
            self.on_closed = lambda _: None
            self._raw.close()

    async def wait(self, answer: asyncio.Future[Any], what: str) -> Any:
        """Wait for an answer of the broker.

        Raises:
            TransportError: the channel was closed; ``TimeoutError``: there was no answer.
        """
        if self.error is not None:
            raise translate(self.error, what)
        self._waiting.add(answer)
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                return await answer
        except builtins.TimeoutError as error:
            raise TimeoutError(f"{what}: no response within {_CALL_TIMEOUT:g} s") from error
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise translate(error, what) from error
        finally:
            self._waiting.discard(answer)

    async def _call(self, what: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of pika's channel, and wait for the broker's answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(reply: Any) -> None:
            if not answer.done():
                answer.set_result(reply.method)

        if self.error is not None:
            raise translate(self.error, what)
        try:
            getattr(self._raw, method)(*arguments, callback=done, **options)
        except (pika_errors.AMQPError, pika_errors.ChannelError) as error:
            raise translate(error, what) from error
        return await self.wait(answer, what)

    def _cancelled(self, _: object) -> None:
        self.on_cancel()

    def _connection_lost(self, lost: asyncio.Future[BaseException]) -> None:
        self._closed(None, lost.result())

    def _closed(self, _: object, reason: BaseException) -> None:
        if self.error is not None:
            return
        self.error = reason
        self._gone.set()
        self.connection.sinks.pop(self.number, None)
        self.connection.lost.remove_done_callback(self._connection_lost)
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(reason)
        self.on_closed(reason)


def _ignore(*_: object) -> None:
    """Take the place of a callback for frames that the sink handles."""
