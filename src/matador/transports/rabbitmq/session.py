"""The connections of a transport to one server: two for AMQP, and the HTTP API if it may be used.

One AMQP connection publishes, the other does everything else. When the broker runs out of memory or
disk, it blocks connections that publish. Acknowledgements must still get through then, because they
free its resources.

The management plugin answers what AMQP does not tell. Everything works without it. Its numbers are
up to five seconds old, because the server collects them that often: what AMQP knows is taken from
AMQP.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPException
from typing import Self, TypeVar
from urllib.parse import quote

import msgspec

from matador.errors import (
    ConnectionFailedError,
    NotConnectedError,
    QueueNotFoundError,
    TransportError,
)
from matador.model.message import Finding
from matador.transports.kit.options import tls_context
from matador.transports.rabbitmq.connection import AmqpChannel, AmqpConnection
from matador.transports.rabbitmq.delays import lost_queue
from matador.transports.rabbitmq.errors import translate
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.publisher import AmqpPublisher
from matador.transports.rabbitmq.topology import AmqpObject

log = logging.getLogger("matador.rabbitmq")

Answer = TypeVar("Answer")

_OLDEST_FOR_DELAYS = (3, 10)
_REALM = "RabbitMQ Management"
_PORT_OFFSET = 10_000  # 15672 belongs to 5672, 15671 to 5671
_HIGHEST_PORT = 65_535
_TIMEOUT = 2.0  # seconds
_ASK_AGAIN_AFTER = 10.0  # seconds
_LARGEST = 1024 * 1024  # bytes of a response


class AmqpSession:
    """Both connections; if one is lost, the other is closed."""

    def __init__(
        self, address: RabbitMQAddress, publishing: AmqpConnection, consuming: AmqpConnection
    ) -> None:
        self.address = address
        self.publishing = publishing
        self.consuming = consuming
        self.management = Management(address, consuming.host, consuming.port)
        self.publisher = AmqpPublisher(
            publishing, window=address.window, timeout=address.send_timeout
        )
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: RabbitMQAddress) -> Self:
        """Connect to the first host that answers.

        Raises:
            ConnectionFailedError: none does; the error lists every reason.
        """
        failures: list[ConnectionFailedError] = []
        for host, port in address.hosts:
            try:
                return await cls._open_at(address, host, port)
            except ConnectionFailedError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise ConnectionFailedError("; ".join(map(str, failures))) from failures[-1]

    @classmethod
    async def _open_at(cls, address: RabbitMQAddress, host: str, port: int) -> Self:
        async with AsyncExitStack() as opened:
            publishing = await AmqpConnection.open(address, host, port, "publishing")
            opened.push_async_callback(publishing.disconnect)
            consuming = await AmqpConnection.open(address, host, port, "consuming")
            opened.push_async_callback(consuming.disconnect)
            session = cls(address, publishing, consuming)
            await session.publisher.open()
            opened.pop_all()
        return session

    async def wait_lost(self) -> BaseException | None:
        """Wait until one of the connections is lost, and start to close the other."""
        either = [self.publishing.lost, self.consuming.lost]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        reason = next(one.result() for one in either if one.done())
        log.debug("lost the connection to %s: %s", self.address, reason)
        # In the background: the other one may be dead too, and the state must change now.
        self._closing = asyncio.create_task(self.close())
        return translate(reason, str(self.address))

    @property
    def is_closed(self) -> bool:
        """Whether both connections are closed."""
        return self.publishing.lost.done() and self.consuming.lost.done()

    @asynccontextmanager
    async def channel(self) -> AsyncGenerator[AmqpChannel]:
        """Open a channel for a few calls. The broker closes it alone if one of them fails."""
        channel = await AmqpChannel.open(self.consuming)
        try:
            yield channel
        finally:
            await channel.close()

    async def create(self, things: Iterable[AmqpObject]) -> TransportError | None:
        """Create objects exactly as they are described; return why one cannot be created.

        Raises:
            NotConnectedError: the connection is lost.
        """
        try:
            async with self.channel() as channel:
                for thing in things:
                    await channel.declare(thing)
        except NotConnectedError:
            raise
        except TransportError as error:
            return error
        return None

    async def examine(self) -> Sequence[Finding]:
        """Return what ``matador doctor`` reports about the server."""
        version, blocked = self.consuming.server_version, self.publishing.blocked
        findings = [Finding("server", f"RabbitMQ {version}", _upgrade(version))]
        findings += about_cluster(await self.management.nodes())
        if not self.management.is_asked:
            text = "not looked at: the management plugin is asked only if management= says so"
            findings.append(Finding("cluster", text))
        if blocked is not None:
            fix = "free memory or disk on the server, or raise its limits"
            text = f"RabbitMQ blocks publishers: {blocked}"
            findings.append(Finding("alarms", text, fix, serious=True))
        lost = lost_queue(self.address.delay_prefix)
        try:
            async with self.channel() as channel:
                waiting = await channel.count_ready(lost)
        except QueueNotFoundError:
            waiting = 0
        if waiting:
            text = f"{waiting:,} delayed messages could not be delivered: their queue was deleted"
            findings.append(Finding("delays", text, f"they are in the queue {lost}"))
        return findings

    async def close(self) -> None:
        """Close both. Idempotent."""
        await asyncio.gather(self.publishing.disconnect(), self.consuming.disconnect())


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    name: str
    running: bool = True
    mem_alarm: bool = False
    disk_free_alarm: bool = False
    partitions: tuple[str, ...] = ()


class Management:
    """The HTTP API of a server. After a request without an answer, none is made for a while.

    Each request sends the password. So unless ``management=`` names the address, or says that the
    API is on the server's own host, requests are only made over TLS with a verified certificate.
    """

    def __init__(self, address: RabbitMQAddress, host: str, port: int) -> None:
        self._base = _base(address, host, port)
        self._ask_again_at = 0.0
        self._address = address
        self._opener: urllib.request.OpenerDirector | None = None

    @property
    def is_asked(self) -> bool:
        """Whether requests may be made at all."""
        return self._base is not None

    async def unacknowledged(self, queue: str) -> int | None:
        """Count the messages of a queue in flight; None: no answer, or not counted yet."""
        path = f"queues/{quote(self._address.vhost, safe='')}/{quote(queue, safe='')}"
        column = "messages_unacknowledged"
        answer = await self._ask(f"{path}?columns={column}", dict[str, int | None])
        return None if answer is None else answer.get(column)

    async def nodes(self) -> list[Node] | None:
        """List the nodes of the cluster; None: no answer."""
        columns = ",".join(Node.__struct_fields__)
        return await self._ask(f"nodes?columns={columns}", list[Node])

    async def _ask(self, path: str, kind: type[Answer]) -> Answer | None:
        base = self._base
        if base is None or time.monotonic() < self._ask_again_at:
            return None
        try:
            answer = await asyncio.to_thread(self._get, base, f"{base}/api/{path}")
            return msgspec.json.decode(answer, type=kind)
        except urllib.error.HTTPError as error:
            log.debug("management: %s for %s", error, path)  # other requests may succeed
            error.close()
        except (OSError, HTTPException, ValueError) as error:
            log.debug("%s: the management plugin does not answer: %s", base, error)
            self._ask_again_at = time.monotonic() + _ASK_AGAIN_AFTER
        return None

    def _get(self, base: str, url: str) -> bytes:
        if self._opener is None:
            passwords = urllib.request.HTTPPasswordMgr()
            passwords.add_password(_REALM, base, self._address.user, self._address.password)
            tls = tls_context(self._address) if self._address.tls else None
            self._opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}),  # no proxy
                urllib.request.HTTPSHandler(context=tls),
                urllib.request.HTTPBasicAuthHandler(passwords),
            )
        with self._opener.open(url, timeout=_TIMEOUT) as response:
            return response.read(_LARGEST)


def _base(address: RabbitMQAddress, host: str, port: int) -> str | None:
    verified = address.tls and address.tls_verify
    if address.management == "false" or (address.management == "auto" and not verified):
        return None
    if address.management not in ("auto", "true"):
        return address.management.rstrip("/")
    if port + _PORT_OFFSET > _HIGHEST_PORT:
        return None
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if address.tls else "http"
    return f"{scheme}://{shown}:{port + _PORT_OFFSET}"


def about_cluster(nodes: Sequence[Node] | None) -> Iterator[Finding]:
    """Report what only the management plugin knows about the nodes."""
    if nodes is None:
        return
    down = [node.name for node in nodes if not node.running]
    if down:
        text = f"not running: {', '.join(down)}"
        yield Finding("cluster", text, "start them: quorum queues need a majority", serious=True)
    split = [node.name for node in nodes if node.partitions]
    if split:
        text = f"network partition between: {', '.join(split)}"
        yield Finding(
            "cluster", text, "restart the nodes whose data may be discarded", serious=True
        )
    for kind, word in (("mem_alarm", "memory"), ("disk_free_alarm", "disk")):
        short = [node.name for node in nodes if getattr(node, kind)]
        if short:
            text = f"low on {word}, publishers are blocked: {', '.join(short)}"
            yield Finding("alarms", text, f"free {word} there, or raise its limit", serious=True)
    if not down and not split:
        yield Finding("cluster", f"{len(nodes)} of {len(nodes)} servers running")


def _upgrade(version: str) -> str:
    numbers = version.split(".")[:2]
    known = all(number.isdecimal() for number in numbers)
    if known and tuple(map(int, numbers)) < _OLDEST_FOR_DELAYS:
        return "delays need RabbitMQ 3.10 or newer, whose quorum queues have expiring messages"
    return ""
