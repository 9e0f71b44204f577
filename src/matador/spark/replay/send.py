"""Sends one chunk of a replay, in an executor or in the driver."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from matador.codec.base import DecodedPayload, PayloadDecoder
from matador.errors import MatadorError
from matador.events.app import Matador, SyncMatador
from matador.events.fanout import derived_id
from matador.jobs import Queue
from matador.model.event import EventType
from matador.model.message import Once
from matador.model.sending import SendOptions, SendResult
from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.replay.jobs import JobSender, load_queue, open_queue
from matador.spark.replay.ledger import Chunk, FailedRow, Kind, Ledger, ReplayPlan
from matador.spark.replay.selection import ReplayTarget, receivers
from matador.spark.source.publish import EventPublisher, RowEvents, open_publisher

EventToSend: TypeAlias = tuple[EventType, Any, SendOptions]
"""An event, its payload and its options."""

_COLUMNS = [
    "id",
    "event_key",
    "subscriber",
    "correlation_id",
    "metadata",
    "data_json",
    "before_json",
]
_MOST = 5000  # rows published in one call: a broker on this machine syncs its disk for each
_NEW_OBJECTS = 40 * _MOST  # before Python's collector looks at them
_BURST = 0.1  # how many seconds of the rate may be sent at once


class Pace:
    """Limits the messages per second, without catching up on lost time."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    @property
    def portion(self) -> int:
        """How many messages may be sent at once."""
        return _MOST if self._rate is None else max(1, min(_MOST, int(self._rate * _BURST)))

    async def wait(self, count: int) -> None:
        """Wait until ``count`` more messages may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if now < self._next:
            await asyncio.sleep(self._next - now)
        self._next = max(now, self._next) + count / self._rate


@dataclass(frozen=True, slots=True)
class Resending:
    """The data of a task. Pickled, with a reference to the application or the queue."""

    ledger: Ledger
    plan: ReplayPlan
    app: str
    rate: float | None

    def __call__(self, number: int) -> bytes:
        name = self.plan.chunks[number]
        if not self.ledger.is_done(name):
            with open_sender(self.app, self.plan.kind) as sender, rare_collections():
                send_chunk(sender, self.ledger, self.plan, name, Pace(self.rate))
        return b""


class EventSender:
    """A started application, by which the rows of a replay are sent. Used by one thread."""

    def __init__(self, publisher: EventPublisher) -> None:
        self._publisher = publisher
        self.wait = publisher.wait
        self.seal = publisher.seal

    def items(
        self, ledger: Ledger, plan: ReplayPlan, name: str, failed: list[FailedRow]
    ) -> Iterator[tuple[int, EventToSend]]:
        """The events of a chunk, with the indexes of their rows; ``failed`` gets the others."""
        return _items(self._publisher, ledger, plan, name, failed)

    async def publish(self, items: Sequence[EventToSend], once: Once) -> Sequence[SendResult]:
        """Publish events, each once. Failures are in the results."""
        return await self._publisher.app.publish(items, once=once, send_errors="report")


Sender: TypeAlias = EventSender | JobSender
"""The senders of the rows of a replay."""


@contextlib.contextmanager
def open_sender(target: Matador | SyncMatador | Queue | str, kind: Kind) -> Generator[Sender]:
    """Start what sends the rows of a replay of that kind, given as an object or by reference."""
    if isinstance(target, Queue) or (isinstance(target, str) and kind == "jobs"):
        with open_queue(load_queue(target) if isinstance(target, str) else target) as sender:
            yield sender
        return
    with open_publisher(target) as publisher:
        yield EventSender(publisher)


@contextlib.contextmanager
def rare_collections() -> Generator[None]:
    """Keep Python's collector from going through the same objects again and again.

    The collector runs when there are many new objects, and a replay creates many per portion, none
    of them cyclic garbage. This took a quarter of the time. Existing objects are frozen, unless the
    program has frozen objects itself.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    often = 0 < before[0] < _NEW_OBJECTS  # 0: never
    if often:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if often:
            gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


def scope_of(ledger: Ledger, chunk: int) -> Once:
    """The scope within which the rows of a chunk are sent once.

    The rows of a chunk are fixed, so each chunk has its own scope: the transport compares an id
    only with those of the same chunk.
    """
    return Once(f"replay:{ledger.replay_id}", chunk)


def send_chunk(
    sender: Sender,
    ledger: Ledger,
    plan: ReplayPlan,
    name: str,
    pace: Pace,
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """Send the rows of a chunk that were not sent yet, and note the result.

    If killed before the note, the chunk is sent again: a transport with ``capabilities.once`` does
    not store the rows again, any other does, under the same ids.
    """
    sending = _Sending(sender, ledger, plan, name, pace)
    ledger.note(name, sender.wait(sending.run(report)))


class _Sending:
    """A chunk being sent, and its counts so far. Runs in the sender's event loop.

    While the broker stores some rows, the same thread prepares the next: a second thread would only
    take turns with it.
    """

    def __init__(
        self, sender: Sender, ledger: Ledger, plan: ReplayPlan, name: str, pace: Pace
    ) -> None:
        before = ledger.chunk(name) or Chunk()
        self._sent = before.sent
        self._skipped = before.skipped
        self._failed: list[FailedRow] = []
        self._again = {failure.row for failure in before.failed}
        self._publish: Callable[..., Awaitable[Sequence[SendResult]]] = sender.publish
        self._once = scope_of(ledger, plan.chunks.index(name))
        self._items: Iterator[tuple[int, Any]] = sender.items(ledger, plan, name, self._failed)
        self._pace = pace

    async def run(self, report: Callable[[int], None]) -> Chunk:
        """Send all rows; ``report`` is called with the size of every portion sent."""
        again, rows = self._again, self._items
        if again:
            rows = (one for one in rows if one[0] in again)
        sending: asyncio.Task[int] | None = None
        while portion := list(islice(rows, self._pace.portion)):
            if sending is not None:
                report(await sending)
            await self._pace.wait(len(portion))
            sending = asyncio.create_task(self._send(portion))
            await asyncio.sleep(0)  # let it run until it waits for the broker
        if sending is not None:
            report(await sending)
        return Chunk(self._sent, self._skipped, tuple(self._failed))

    async def _send(self, portion: Sequence[tuple[int, Any]]) -> int:
        """Send some rows; returns the number of messages."""
        before = self._sent
        items = [item for _, item in portion]
        results = await self._publish(items, self._once)
        for (row, _), result in zip(portion, results, strict=True):
            if result.errors:  # counted when none of its messages fails
                self._failed.append(FailedRow(row, str(result.errors[0])))
            else:
                self._sent += result.sent
                self._skipped += result.skipped
        return self._sent - before


def _items(
    publisher: EventPublisher, ledger: Ledger, plan: ReplayPlan, name: str, failed: list[FailedRow]
) -> Iterator[tuple[int, EventToSend]]:
    batches = ledger.batches(name, _MOST)
    if plan.kind == "backfill":
        incoming = RowEvents(publisher.app.schema, plan.event, f"{ledger.replay_id}/{name}")
        yield from enumerate(item for batch in batches for item in incoming.items(batch))
        return
    maker = _Again(publisher, ledger.replay_id, plan)
    columns = ([batch.column(one).to_pylist() for one in _COLUMNS] for batch in batches)
    rows = chain.from_iterable(zip(*lists, strict=True) for lists in columns)
    for row, values in enumerate(rows):
        try:
            item = maker.item(*values)
        except MatadorError as error:
            failed.append(FailedRow(row, str(error)))
        else:
            if item is not None:
                yield row, item


class _Route(NamedTuple):
    """The receivers of the rows of an event and an original subscriber.

    ``name`` is the subscriber that ids are derived for; ``subscribers`` has the only one that the
    events go to, if any.
    """

    event: EventType
    decode: PayloadDecoder
    name: str
    subscribers: tuple[str, ...] | None


class _Again:
    """Turns rows of the lake into the events of a replay."""

    def __init__(self, publisher: EventPublisher, replay_id: str, plan: ReplayPlan) -> None:
        self._publisher = publisher
        self._replay_id = replay_id
        self._everybody = plan.everybody
        self._queue = plan.queue
        self._target = ReplayTarget(plan.subscriber, plan.queue, plan.everybody)
        self._routes: dict[tuple[str, str], _Route | None] = {}

    def item(
        self,
        original: str,
        event_key: str,
        subscriber: str,
        correlation_id: str | None,
        metadata: Sequence[tuple[str, str]] | None,
        data: str,
        before: str | None,
    ) -> EventToSend | None:
        """The event of a row; None if it no longer has a receiver."""
        way = event_key, subscriber
        route = self._routes.get(way)
        if route is None:
            if way not in self._routes:
                route = self._routes[way] = self._route(event_key, subscriber)
            if route is None:
                return None
        event, decode, name, subscribers = route
        json = msgspec.Raw(data.encode())
        payload = DecodedPayload(decode(json), json)
        # The id of an envelope is derived from the ids of the replay and of the original, and the
        # name of the subscriber: here for one subscriber, by the fan-out for all.
        replay_id = self._replay_id
        own = {REPLAY_ID: replay_id, REPLAY_OF: original}
        options = SendOptions(
            metadata={**dict(metadata), **own} if metadata else own,
            correlation_id=correlation_id,
            before=None if before is None else decode(msgspec.Raw(before.encode())),
            id=f"{replay_id}\x1f{original}"
            if self._everybody
            else derived_id(replay_id, original, name),
            subscribers=subscribers,
            queue=self._queue,
        )
        return event, payload, options

    def _route(self, event_key: str, subscriber: str) -> _Route | None:
        app = self._publisher.app
        names = receivers(app, event_key, subscriber, self._target)
        if not names:
            return None
        event = app.schema.event(event_key)
        chosen = None if self._everybody else (names[0],)
        return _Route(event, self._publisher.json.payload_decoder(event), names[0], chosen)
