"""RabbitMQ without Matador: raw pika, as another implementation would use it; and accidents."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, cast

import pika
from chaos.servers import Server
from tests.support.brokers import SCRIPT

from matador.jobs.provider import NAMESPACE as JOBS
from matador.model.message import ConnectionState, Message
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.rabbitmq import RabbitMQTransport
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.topology import (
    AmqpBinding,
    AmqpExchange,
    AmqpQueue,
    delayed_exchange,
    plan_for,
)


def ctl(server: Server, *arguments: str) -> None:
    """Run ``rabbitmqctl`` for a server of a test's own."""
    environment = {
        **os.environ,
        "MATADOR_BROKERS_FOLDER": str(server.folder.parent),
        "MATADOR_RABBITMQ_PORT": str(server.port),
    }
    command = [str(SCRIPT), "ctl", "rabbitmq", *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)


class Raw:
    """A blocking connection. Its channel is opened anew after the broker closed it."""

    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel: Any = None

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    @property
    def channel(self) -> Any:
        """Untyped, as pika is."""
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    def declare_queue(self, name: str, **arguments: Any) -> None:
        """A durable queue, made by somebody else. ``x_max_length`` stands for ``x-max-length``."""
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments=given)

    def publish(
        self, exchange: str, key: str, body: bytes, headers: dict[str, Any], **properties: Any
    ) -> None:
        """A message written by hand, confirmed."""
        self.channel.basic_publish(
            exchange,
            key,
            body,
            pika.BasicProperties(headers=headers, **properties),
            mandatory=True,
        )

    def get(self, queue: str, *, patience: float = 10.0) -> tuple[Any, Any, bytes]:
        """The next message of a queue: method, properties, body. Acknowledged."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is not None:
                return method, properties, body
            self._connection.process_data_events(0.01)  # type: ignore[arg-type] - takes floats
        raise AssertionError(f"{queue}: nothing came in {patience:g} s")

    def count(self, queue: str) -> int:
        """How many messages are ready."""
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def delete(self, topologies: Iterable[Topology], queues: Iterable[str] = ()) -> None:
        """Delete everything of these topologies, and some queues.

        Exchanges that other tests use, too, stay: those of jobs, and ``dlx``.
        """
        for topology in topologies:
            shared = topology.namespace == JOBS
            for thing in plan_for(topology, due_exchange=None, plugin=False):
                match thing:
                    case AmqpQueue(name):
                        self.channel.queue_delete(name)
                    case AmqpExchange(name):
                        if name != "dlx" and not shared:
                            self.channel.exchange_delete(name)
                    case AmqpBinding():
                        pass
            if not shared:
                self.channel.exchange_delete(delayed_exchange(topology.namespace))
        for queue in queues:
            self.channel.queue_delete(queue)


def connections(transport: RabbitMQTransport) -> list[AmqpConnection]:
    """The connections of a connected transport."""
    session = transport._supervisor.connection
    return [session.publishing, session.consuming]


def cut(connection: AmqpConnection) -> None:
    """Cut a connection as a network does: no farewell."""
    cast("Any", connection)._transport._sock.shutdown(socket.SHUT_RDWR)


class States:
    """Every state a transport's connection is in, from now on."""

    def __init__(self, transport: RabbitMQTransport) -> None:
        self.seen: list[str] = []
        transport.observe(self)

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        self.seen.append(state.status)

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        raise AssertionError("nothing may fall back here")

    def dropped(self, queue: str, number: int) -> None:
        """See ``TransportObserver``."""
        raise AssertionError("nothing may be dropped here")


async def cut_and_reconnect(transport: RabbitMQTransport, *which: int) -> None:
    """Cut connections (0: publishing, 1: consuming), and wait until there are new ones.

    The state in between may be over before anybody looks, so it is written down.
    """
    states = States(transport)
    for place in which:
        cut(connections(transport)[place])
    await reconnected(transport, states)


async def reconnected(transport: RabbitMQTransport, states: States) -> None:
    """Wait until a connection that was cut has been made anew."""
    await wait_for(lambda: "reconnecting" in states.seen, timeout=30, message="noticed")
    await wait_for(lambda: transport.state.status == "connected", timeout=30, message="back")


def topologies(transports: Iterable[object]) -> list[Topology]:
    """All that these transports have applied, each once."""
    found: dict[Topology, None] = {}
    for transport in transports:
        if isinstance(transport, RabbitMQTransport):
            found.update(dict.fromkeys(transport._topologies._topologies))
    return list(found)


def eventually(condition: Callable[[], bool], what: str, patience: float = 10.0) -> None:
    """Wait in a thread of its own for something that pika's blocking connection sees."""
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, f"waited {patience:g} s in vain for {what}"
        time.sleep(0.01)
