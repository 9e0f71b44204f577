"""``SqliteTransport``: durable messages in one file, for all processes of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from matador.errors import ConfigurationError, MatadorError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    ConnectionState,
    Delivery,
    Finding,
    Message,
    Once,
    QueueDepth,
    Receipt,
    Release,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds
from matador.model.topology import Topology
from matador.transports.clock import Clock
from matador.transports.kit.errors import cannot_pause_letters
from matador.transports.kit.notes import ignored_arguments
from matador.transports.kit.properties import ALL_PROPERTIES
from matador.transports.kit.replies import REPLY_PREFIX
from matador.transports.sqlite import browse, claim, doctor, send, settle, sweep
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.connection import SqliteConnection
from matador.transports.sqlite.database import Synchronous
from matador.transports.sqlite.errors import translate
from matador.transports.sqlite.jobs import SqliteJobs
from matador.transports.sqlite.options import SqliteOptions, read_url
from matador.transports.sqlite.routes import TemporaryQueue
from matador.transports.sqlite.session import SqliteQueue, WriterSession
from matador.transports.sqlite.subscription import SqliteReplies, SqliteSubscription

_LONGEST_ROW = 19  # digits of the largest row number
_REPLIES_EXPIRE = 60_000  # ms; the replies of a process that was killed are kept for so long


class SqliteTransport(SqliteJobs):
    """Messages in an SQLite file: no server, several processes, nothing lost.

    One thread does all the writing, and puts whatever is pending into one transaction. Another
    process is woken within about 10 ms. The file must be on a local disk. A process must not fork
    while connected: connect in the child.

    Args:
        path: the file; created if it does not exist, but its folder is not.
        synchronous: ``FULL``: a confirmed send survives a power failure. ``NORMAL``: it survives
            the death of every process, but a power failure may lose the last moments.
        lease: seconds for which a delivery belongs to its receiver unless renewed.
        busy_timeout: seconds to wait while another process writes.
        clock: for tests; the default is not affected when the machine's clock is set.
        name: for logs and metrics.

    Example:
        >>> transport = SqliteTransport("shop.db", synchronous="NORMAL")
        >>> transport.capabilities.delays
        True
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        lease: Seconds = 30.0,
        busy_timeout: Seconds = 10.0,
        clock: Clock | None = None,
        name: str = "sqlite",
    ) -> None:
        options = SqliteOptions(
            path=path,
            synchronous=synchronous,
            lease=lease,  # pyright: ignore[reportArgumentType] - a timedelta is checked
            busy_timeout=busy_timeout,  # pyright: ignore[reportArgumentType]
            name=name,
        )
        super().__init__(options.name)
        self._options = options
        self._path = Path(path).absolute()
        self._lease = round(options.lease * 1000)
        self._clock = clock
        self._machine = Machine(clock)
        self._connection: SqliteConnection | None = None
        self._subscriptions: set[SqliteSubscription] = set()
        self._replies: str | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, **options: Any) -> SqliteTransport:
        """A transport from ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``.

        Options: ``?synchronous=NORMAL&lease=60&busy_timeout=5&name=sqlite``, or as keywords.

        Raises:
            ConfigurationError: the address is malformed, or has an unknown option.
        """
        return cls(**read_url(url, options), clock=clock)

    def __repr__(self) -> str:
        return f"SqliteTransport({str(self._path)!r}, {self._state.status})"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            delivery_modes=frozenset({"at-least-once", "at-most-once"}),
            delays=True,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="worker",
            ordering="partition",
            priorities=True,
            browse=True,
            purge=True,
            depth=True,
            pause=True,
            replay=True,
            once=True,
            jobs=True,
            properties=ALL_PROPERTIES,
            routing=True,
            durable=True,
            lease=self._options.lease,
        )

    # -- connection --------------------------------------------------------------------------

    async def _open(self) -> None:
        """Open the file.

        Raises:
            ConnectionFailedError: the file cannot be opened; the message says why.
            StorageCorruptError: it is damaged, or belongs to another application.
            StorageFullError: the disk is full.
        """
        self._change_state(ConnectionState("connecting"))
        try:
            connection = SqliteConnection(self._path, DatabaseClock(self._machine), self._options)
            await connection.open()
        except Exception as error:
            failure = translate(error, self._path, opening=True)
            self._change_state(ConnectionState("failed", attempt=1, error=failure))
            if failure is error:
                raise
            raise failure from error
        except BaseException:
            self._change_state(ConnectionState("disconnected", closed=True))
            raise
        self._connection = connection
        self._change_state(ConnectionState("connected"))

    async def _close(self) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        connection, self._connection = self._connection, None
        replies, self._replies = self._replies, None
        if connection is not None:
            if replies is not None:
                with contextlib.suppress(MatadorError):  # then it expires
                    await connection.write(lambda session: session.delete_queue(replies))
            await connection.close()
        self._change_state(ConnectionState("disconnected", closed=True))

    @property
    def _connected(self) -> SqliteConnection:
        if self._connection is None:
            self._require_connected()
        assert self._connection is not None
        return self._connection

    # -- sending and receiving ---------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create the queues of a topology, ``exact`` ones too."""
        notes = await self._connected.write(lambda session: session.declare(topology))
        return [*ignored_arguments(topology), *notes]

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        outcomes = await self._connected.writer.submit(send.store, messages)
        self._wake({message.queue for message in messages if message.delay <= 0})
        return outcomes

    async def subscribe(self, queue: str, *, prefetch: int) -> SqliteSubscription:
        """Receive from a queue. ``prefetch`` is ignored: nothing is claimed in advance."""
        return await self._subscribe(SqliteSubscription, queue)

    async def _subscribe(self, kind: type[SqliteSubscription], queue: str) -> SqliteSubscription:
        connection, consumer = self._connected, object()
        found, temporary = await connection.read(queue, browse.find)
        if temporary:
            await connection.write(lambda session: session.consume(queue, consumer))
        subscription = kind(
            found,
            connection,
            lease=self._lease,
            consumer=consumer if temporary else None,
            give_back=self._give_back,
            on_close=self._subscriptions.discard,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """Carry out settlements, each in one transaction."""
        outcomes = await self._connected.writer.submit(settle.settle, settlements)
        limited = {one.queue for one in self._subscriptions if one.limits_keys}
        self._wake(settle.refilled(settlements, limited))
        return outcomes

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self.settle([Release(delivery.receipt) for delivery in deliveries])

    def _wake(self, queues: set[str]) -> None:
        if queues:
            for subscription in self._subscriptions:
                if subscription.queue in queues:
                    subscription.wake()

    # -- optional abilities ------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        return await self._connected.write(
            lambda session: claim.renew(session, receipts, self._lease)
        )

    def twin(self) -> SqliteTransport:
        options = self._options
        return SqliteTransport(
            self._path,
            synchronous=options.synchronous,
            lease=options.lease,
            busy_timeout=options.busy_timeout,
            clock=self._clock,
            name=options.name,
        )

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Unfinished messages, read a page at a time."""
        position = _start(after)
        left = limit
        while left is None or left > 0:
            page = await self._connected.read(queue, browse.browse_page, position, left)
            if not page:
                return
            for message in page:
                yield message
            position = int(page[-1].position)
            left = None if left is None else left - len(page)

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery | None]:
        rows = [_row(position) for position in positions]
        return await self._connected.write(
            lambda session: claim.take(session, session.queue(queue), rows, self._lease)
        )

    async def purge(self, queue: str) -> int:
        return await self._connected.write(
            lambda session: sweep.purge(session, session.queue(queue))
        )

    async def depth(self, queue: str) -> QueueDepth:
        return await self._connected.read(queue, browse.depth)

    async def depths(self, queues: Sequence[str]) -> Sequence[QueueDepth | None]:
        def look(
            connection: sqlite3.Connection, known: dict[str, SqliteQueue], now: int
        ) -> list[QueueDepth | None]:
            wanted = [known[name] for name in queues if name in known]
            found = browse.depths(connection, wanted, now)
            return [found[known[name].id] if name in known else None for name in queues]

        return await self._connected.read_all(look)

    async def paused(self, queues: Sequence[str]) -> Sequence[bool | None]:
        return await self._connected.read_all(
            lambda _, known, __: [known[one].paused if one in known else None for one in queues]
        )

    async def pause_queue(self, queue: str) -> None:
        def pause(session: WriterSession) -> None:
            found = session.queue(queue)
            if found.dead_letters:
                raise cannot_pause_letters(queue)
            session.pause(found, True)

        await self._connected.write(pause)

    async def resume_queue(self, queue: str) -> None:
        """End a pause. Other processes notice that the file has changed."""
        await self._connected.write(lambda session: session.pause(session.queue(queue), False))
        self._wake({queue})

    async def is_paused(self, queue: str) -> bool:
        return await self._connected.read(queue, browse.is_paused)

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        return await self._connected.read(queue, browse.read, _start(after), limit)

    async def split(
        self, queue: str, parts: int, *, after: str | None = None, until: str | None = None
    ) -> Sequence[str]:
        last = None if until is None else _row(until)
        ends = await self._connected.read(queue, browse.split, parts, _start(after), last)
        return [str(end) for end in ends]

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        """Send messages that are new. Their ids are stored in the same transaction."""
        work = partial(send.store_once, once=once)
        outcomes = await self._connected.writer.submit(work, messages)
        self._wake({message.queue for message in messages if message.delay <= 0})
        return outcomes

    async def seal(self, once: Once) -> None:
        """End a part of a scope. Ids are deleted a few at a time, between other transactions."""
        while await self._connected.write(partial(send.seal, once=once)):
            pass

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        """Publish messages. The copies of a message are stored in one transaction."""
        work = partial(send.publish, exchange=exchange)
        outcomes = await self._connected.writer.submit(work, messages)
        reached = [one for one in outcomes if isinstance(one, list)]
        self._wake({queue for queues in reached for queue in queues})
        return [len(one) if isinstance(one, list) else one for one in outcomes]

    async def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        await self._connected.write(lambda session: session.unbind(exchange, queue, pattern))

    async def delete_queue(self, queue: str) -> None:
        await self._connected.write(lambda session: session.delete_queue(queue))
        self._wake({queue})

    async def reply_address(self) -> str:
        """A temporary queue of this transport."""
        connection = self._connected
        if self._replies is None:
            queue = TemporaryQueue(f"{REPLY_PREFIX}{uuid4()}", _REPLIES_EXPIRE)
            self._replies = queue.name
            await connection.write(lambda session: session.open_temporary(queue))
        return self._replies

    async def replies(self) -> SqliteSubscription:
        return await self._subscribe(SqliteReplies, await self.reply_address())

    # -- for `matador doctor` ----------------------------------------------------------------

    @property
    def missing_storage(self) -> str | None:
        return None if self._path.exists() else str(self._path)

    def examine_storage(self) -> Sequence[Finding]:
        """Permissions, free space, the size of the log."""
        return list(doctor.examine_file(self._path))

    async def examine(self) -> Sequence[Finding]:
        """The clock of the file against that of the machine."""
        self._require_connected()
        return await asyncio.to_thread(lambda: list(doctor.examine_clock(self._path)))


def _start(after: str | None) -> int:
    """The row after which to start."""
    row = 0 if after is None else _row(after)
    if row < 0:
        raise ConfigurationError(f"{after!r} is not a position; use StoredMessage.position")
    return row


def _row(position: str) -> int:
    """The row of a position; -1, which no row has, if it is not a position of this transport."""
    return int(position) if position.isdecimal() and len(position) < _LONGEST_ROW else -1
