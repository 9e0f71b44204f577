"""One AMQP connection: pika's, with a shortcut for the frames that are sent once per message.

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

from matador.errors import NotConnectedError
from matador.transports.kit.options import tls_context
from matador.transports.rabbitmq import frames
from matador.transports.rabbitmq.errors import connection_failed
from matador.transports.rabbitmq.options import RabbitMQAddress

log = logging.getLogger("matador.rabbitmq")

# pika logs seven errors for each connection that is refused. Its errors are translated, and logged
# once, by Matador. Who wants to see pika's own lines gives its logger a level.
if (_pika := logging.getLogger("pika")).level == logging.NOTSET:
    _pika.setLevel(logging.CRITICAL)

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
    """One AMQP connection. ``lost`` gets the reason when the connection is closed by anybody.

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
