"""``SqliteTransport``: durable messages in one file, for all processes of one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

from matador.errors import ConfigurationError, MatadorError, NotConnectedError
from matador.model.capabilities import Capabilities
from matador.model.message import (
    Complete,
    ConnectionState,
    DeadLetter,
    Delivery,
    Message,
    QueueDepth,
    Receipt,
    Release,
    Retry,
    Settlement,
    StoredMessage,
    TopologyNote,
)
from matador.model.options import Seconds, seconds
from matador.model.topology import Topology, dead_letter_name
from matador.transports.base import TransportObserver
from matador.transports.clock import Clock
from matador.transports.sqlite import claiming, declaring, looking, sending, settling, sweeping
from matador.transports.sqlite.claiming import Claim
from matador.transports.sqlite.clock import DatabaseClock, GivenClock, ThisMachine
from matador.transports.sqlite.database import Synchronous, open_for_reading, open_for_writing
from matador.transports.sqlite.errors import translate
from matador.transports.sqlite.session import Session, load_queues, no_such_queue
from matador.transports.sqlite.subscription import SqliteSubscription
from matador.transports.sqlite.url import parse_url
from matador.transports.sqlite.watcher import Watcher
from matador.transports.sqlite.writer import Writer

Result = TypeVar("Result")


class SqliteTransport:
    """Messages in an SQLite file: no server, several processes, nothing lost. See ``Transport``.

    Everything that writes goes through one thread, which puts whatever is pending into one
    transaction. Wake-up takes about 10 ms across processes. The file must be on a local disk.
    A process must not fork while connected: connect in the child.

    Args:
        path: the file; made if it is not there, its folder is not.
        synchronous: ``FULL``: a confirmed send survives a power failure. ``NORMAL``: it survives
            the death of every process, but a power failure may take back the last moments.
        lease: seconds for which a delivery belongs to its receiver unless renewed.
        busy_timeout: seconds to wait while another process writes.
        clock: for tests; by default the machine's own, proof against being set.
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
        if str(path) in ("", ".", ":memory:"):
            raise ConfigurationError(
                f"path must name a file, got {str(path)!r}; "
                f"for messages that need not last use MemoryTransport (memory://)"
            )
        if synchronous not in get_args(Synchronous):
            raise ConfigurationError(f"synchronous must be FULL or NORMAL, got {synchronous!r}")
        self._path = Path(path).absolute()
        self._synchronous: Synchronous = synchronous
        self._lease = seconds(lease, "lease", minimum=0.1)
        self._busy_timeout = seconds(busy_timeout, "busy_timeout")
        self._machine = ThisMachine() if clock is None else GivenClock(clock)
        self._name = name
        self._state = ConnectionState("disconnected")
        self._observers: list[TransportObserver] = []
        self._connecting = asyncio.Lock()
        self._connection: _Connection | None = None

    @classmethod
    def from_url(cls, url: str, *, name: str = "sqlite") -> SqliteTransport:
        """A transport from ``sqlite:///relative.db`` or ``sqlite:////absolute/path.db``.

        Options: ``?synchronous=NORMAL&lease=60&busy_timeout=5``.

        Raises:
            ConfigurationError: the address is malformed, or has an option nobody knows.
        """
        given = parse_url(url)
        return cls(
            given.path,
            synchronous="FULL" if given.synchronous is None else given.synchronous,
            lease=30.0 if given.lease is None else given.lease,
            busy_timeout=10.0 if given.busy_timeout is None else given.busy_timeout,
            name=name,
        )

    def __repr__(self) -> str:
        return f"SqliteTransport({str(self._path)!r}, {self._state.status})"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See ``Transport``."""
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
            replay=True,
            durable=True,
            lease=self._lease,
        )

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._state

    def observe(self, observer: TransportObserver) -> None:
        """See ``Transport``."""
        self._observers.append(observer)

    # -- life --------------------------------------------------------------------------------

    async def connect(self) -> None:
        """See ``Transport``.

        Raises:
            ConnectionFailedError: the file cannot be opened; the message says why.
            StorageCorruptError: it is damaged, or not ours.
            StorageFullError: there is no room to make it.
        """
        async with self._connecting:
            if self._connection is not None:
                return
            self._change(ConnectionState("connecting"))
            clock = DatabaseClock(self._machine)
            writer = Writer(partial(self._open, clock), f"matador-{self._name}-writer")
            try:
                await writer.start()
                watching = open_for_reading(self._path, busy_timeout=0)
                reading = open_for_reading(self._path, busy_timeout=self._busy_timeout)
            except (MatadorError, sqlite3.Error, OSError) as error:
                failure = translate(error, self._path, opening=True)
                self._change(ConnectionState("failed", attempt=1, error=failure))
                if failure is error:
                    raise
                raise failure from error
            self._connection = _Connection(writer, Watcher(watching, clock), reading, clock)
            self._change(ConnectionState("connected"))

    async def disconnect(self) -> None:
        """See ``Transport``."""
        async with self._connecting:
            connection = self._connection
            if connection is None:
                return
            for subscription in list(connection.subscriptions):
                await subscription.close()
            self._connection = None
            await connection.close()
            self._change(ConnectionState("disconnected"))

    def _open(self, clock: DatabaseClock) -> Session:
        connection = open_for_writing(
            self._path, synchronous=self._synchronous, busy_timeout=self._busy_timeout
        )
        try:
            session = Session(connection, self._path, clock, busy_timeout=self._busy_timeout)
            session.anchor()
        except BaseException:
            connection.close()
            raise
        return session

    def _change(self, state: ConnectionState) -> None:
        self._state = state
        for observer in self._observers:
            observer.connection_changed(self._name, state)

    @property
    def _connected(self) -> _Connection:
        if self._connection is None:
            raise NotConnectedError(f"{self._path} is not open; connect first")
        return self._connection

    @property
    def _lease_ms(self) -> int:
        return round(self._lease * 1000)

    # -- sending and receiving ---------------------------------------------------------------

    async def apply_topology(self, topology: Topology) -> Sequence[TopologyNote]:
        """See ``Transport``. Everything can be honoured here, and ``exact`` queues are made."""
        await self._connected.write(lambda session: declaring.declare(session, topology))
        return []

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        """See ``Transport``."""
        connection = self._connected
        outcomes = await connection.writer.submit(sending.store, messages)
        connection.wake({message.queue for message in messages if message.delay <= 0})
        return outcomes

    async def subscribe(self, queue: str, *, prefetch: int) -> SqliteSubscription:
        """See ``Transport``. ``prefetch`` does not matter: nothing is held in advance."""
        connection = self._connected
        found = await connection.write(lambda session: session.queue(queue))
        subscription = SqliteSubscription(
            found,
            claim=self._claim,
            give_back=self._give_back,
            watcher=connection.watcher,
            clock=connection.clock,
            patience=self._lease_ms // 2,
            closed=connection.subscriptions.discard,
        )
        connection.subscriptions.add(subscription)
        return subscription

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        """See ``Transport``. Each is carried out in one transaction."""
        connection = self._connected
        outcomes = await connection.writer.submit(settling.settle, settlements)
        connection.wake(_refilled(settlements))
        return outcomes

    def _claim(self, queue: str, limit: int) -> asyncio.Future[Sequence[Claim | MatadorError]]:
        lease = self._lease_ms

        def claim(session: Session, limits: Sequence[int]) -> list[Claim]:
            return [claiming.claim(session, session.queue(queue), size, lease) for size in limits]

        return self._connected.writer.submit(claim, [limit])

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self.settle([Release(delivery.receipt) for delivery in deliveries])

    # -- optional abilities ------------------------------------------------------------------

    async def renew(self, receipts: Sequence[Receipt]) -> Sequence[bool]:
        """See ``Leasing``."""
        return await self._connected.write(
            lambda session: claiming.renew(session, receipts, self._lease_ms)
        )

    async def browse(
        self, queue: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """See ``Browsing``. Pages are read as the iteration goes on."""
        position = _row(after)
        left = limit
        while left is None or left > 0:
            page = await self._read(queue, looking.browse_page, position, left)
            if not page:
                return
            for message in page:
                yield message
            position = int(page[-1].position)
            left = None if left is None else left - len(page)

    async def take(self, queue: str, positions: Sequence[str]) -> Sequence[Delivery]:
        """See ``Browsing``."""
        rows = [_row(position) for position in positions]
        return await self._connected.write(
            lambda session: claiming.take(session, session.queue(queue), rows, self._lease_ms)
        )

    async def purge(self, queue: str) -> int:
        """See ``Purging``."""
        return await self._connected.write(
            lambda session: sweeping.purge(session, session.queue(queue))
        )

    async def depth(self, queue: str) -> QueueDepth:
        """See ``Measuring``."""
        return await self._read(queue, looking.depth)

    async def read(
        self, queue: str, *, after: str | None = None, limit: int = 1000
    ) -> Sequence[StoredMessage]:
        """See ``Replaying``."""
        return await self._read(queue, looking.read, _row(after), limit)

    async def _read(self, queue: str, look: Callable[..., Result], *arguments: object) -> Result:
        connection = self._connected

        def work() -> Result:
            try:
                queues = load_queues(connection.reading)
                if queue not in queues:
                    raise no_such_queue(queue, queues, self._path)
                return look(connection.reading, queues[queue], *arguments, connection.clock.now())
            except sqlite3.Error as error:
                raise translate(error, self._path) from error

        return await asyncio.get_running_loop().run_in_executor(connection.reader, work)


class _Connection:
    """Everything that is there only while connected."""

    def __init__(
        self, writer: Writer, watcher: Watcher, reading: sqlite3.Connection, clock: DatabaseClock
    ) -> None:
        self.writer = writer
        self.watcher = watcher
        self.reading = reading
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="matador-sqlite-reader")
        self.clock = clock
        self.subscriptions: set[SqliteSubscription] = set()

    def wake(self, queues: set[str]) -> None:
        """Wake the subscriptions of these queues."""
        if queues:
            for subscription in self.subscriptions:
                if subscription.queue in queues:
                    subscription.wake()

    async def write(self, work: Callable[[Session], Result]) -> Result:
        """Run one operation in the writer; raises its error."""

        def one(session: Session, items: Sequence[None]) -> list[Result]:
            return [work(session) for _ in items]

        (outcome,) = await self.writer.submit(one, [None])
        if isinstance(outcome, MatadorError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Finish everything, then let the file go; the writer last, so that it folds in the log."""
        self.watcher.close()
        self.reader.submit(self.reading.close)
        await asyncio.to_thread(self.reader.shutdown)
        await self.writer.stop()


def _refilled(settlements: Sequence[Settlement]) -> set[str]:
    """The queues in which a settlement may have made a message ready."""
    names: set[str] = set()
    for settlement in settlements:
        receipt = settlement.receipt
        match settlement:
            case Complete():
                pass
            case Release():
                names.add(receipt.queue)
            case Retry(_, message):
                names.add(message.queue)
            case DeadLetter(_, kind):
                names.add(dead_letter_name(receipt.queue, kind))
        if receipt.ordering_key is not None:
            names.add(receipt.queue)
    return names


def _row(position: str | None) -> int:
    """The row of a position; one that is not ours fits no row."""
    if position is None:
        return 0
    return int(position) if position.isdecimal() else -1
