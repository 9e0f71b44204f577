"""The edge to pika: connections with a fast way in.

But for channels the rest of this package knows neither pika's objects nor its callbacks.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

import pika
from pika import exceptions as pika_errors

from matador.errors import NotConnectedError
from matador.transports.kit.options import tls_context
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.errors import connection_failed, translate
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.pika_connection import FastConnection, Sink

log = logging.getLogger("matador.rabbitmq")

_CLOSE_TIMEOUT = 3.0


class AmqpConnection:
    """One AMQP connection. ``lost`` is done, with the reason, when it is closed by anybody."""

    def __init__(
        self, raw: FastConnection, lost: asyncio.Future[BaseException], host: str, port: int
    ) -> None:
        self._raw = raw
        self.lost = lost
        self.host = host
        self.port = port
        self.blocked: str | None = None
        self.on_blocked: Callable[[], None] = lambda: None
        raw.add_on_connection_blocked_callback(self._blocked)
        raw.add_on_connection_unblocked_callback(self._unblocked)

    @classmethod
    async def open(
        cls, address: RabbitMQAddress, host: str, port: int, role: str
    ) -> AmqpConnection:
        """Connect to one host.

        Raises:
            ConnectionFailedError: it cannot be reached, or refuses.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        lost: asyncio.Future[BaseException] = loop.create_future()
        where = f"{host}:{port}"

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        def on_error(_: object, error: BaseException | str) -> None:
            if not opened.done():
                reason = error if isinstance(error, BaseException) else OSError(error)
                opened.set_exception(connection_failed(reason, where))

        def on_close(_: object, error: BaseException) -> None:
            if not lost.done():
                lost.set_result(error)

        try:
            parameters = _parameters(address, host, port, role)
            raw = FastConnection(parameters, on_open, on_error, on_close, custom_ioloop=loop)
        except (OSError, ssl.SSLError) as error:  # a file of TLS that is not there
            raise connection_failed(error, where) from error
        try:
            async with asyncio.timeout(2 * address.connect_timeout):
                await opened
        except builtins.TimeoutError as error:
            _abort(raw)
            raise connection_failed(OSError("no response in time"), where) from error
        except BaseException:
            _abort(raw)
            raise
        raw.speed_up()
        return cls(raw, lost, host, port)

    @property
    def is_open(self) -> bool:
        """Can it be used?"""
        return bool(self._raw.is_open) and not self.lost.done()

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame, as agreed with the server."""
        return int(self._raw.params.frame_max)

    @property
    def server_version(self) -> str:
        """The server's own version."""
        return str(cast("dict[str, Any]", self._raw.server_properties or {}).get("version", "?"))

    def write(self, data: bytes) -> None:
        """Send whole frames.

        Raises:
            NotConnectedError: the connection is not open.
        """
        if not self.is_open:
            raise NotConnectedError("the connection was lost")
        self._raw.write(data)

    async def channel(self, sink: Sink | None = None) -> AmqpChannel:
        """A new channel; ``sink`` gets its frames first.

        Raises:
            TransportError: the connection is not open, or has no channel left.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_open(_: object) -> None:
            if not opened.done():
                opened.set_result(None)

        try:
            raw = self._raw.channel(on_open_callback=on_open)
            made = AmqpChannel(self, raw, self._raw.sinks)
            await made.wait(opened, "opening a channel")
        except pika_errors.AMQPError as error:
            raise translate(error, "opening a channel") from error
        if sink is not None:
            self._raw.sinks[made.number] = sink
        return made

    async def close(self) -> None:
        """Close it in order, or cut it if the server does not answer. Idempotent."""
        if self._raw.is_open:
            self._raw.close()
        if not self.lost.done():
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await asyncio.shield(self.lost)
            except builtins.TimeoutError:
                _abort(self._raw)
                await asyncio.wait([self.lost], timeout=1.0)  # the socket is closed then

    def _blocked(self, _: object, method: Any) -> None:
        self.blocked = str(method.method.reason) or "no reason given"
        log.warning("RabbitMQ blocks publishers: %s", self.blocked)
        self.on_blocked()

    def _unblocked(self, _: object, __: object) -> None:
        self.blocked = None
        log.info("RabbitMQ accepts messages again")
        self.on_blocked()


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


def _abort(raw: FastConnection) -> None:
    """Cut a connection that does not react."""
    if raw.is_closed:
        return
    try:
        if getattr(raw, "_transport", None) is None:
            raw.close()  # while it is being made: ends the attempt
        else:
            raw.cut()
    except pika_errors.AMQPError:
        log.debug("the connection was closed already")
