"""Sends one chunk of a replay. Runs in the executors, or in the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import msgspec

from matador.errors import MatadorError
from matador.events.fanout import derived_id
from matador.model.event import EventType
from matador.model.message import Once
from matador.model.sending import SendOptions
from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.arrow import parquet
from matador.spark.ledger import Chunk, Failure, Ledger, Plan
from matador.spark.selection import Target, receivers
from matador.spark.source.incoming import Incoming
from matador.spark.source.publishing import Item, Publisher, open_publisher

_COLUMNS = (
    "id",
    "event_key",
    "subscriber",
    "correlation_id",
    "metadata",
    "data_json",
    "before_json",
)
_MOST = 1000  # rows published in one call
_BURST = 0.1  # seconds' worth of a rate that may go at once


class Pace:
    """Lets so many messages a second through, without ever making up for lost time."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    @property
    def portion(self) -> int:
        """How many may be sent at once."""
        return _MOST if self._rate is None else max(1, min(_MOST, int(self._rate * _BURST)))

    def wait(self, count: int) -> None:
        """Wait until ``count`` more may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + count / self._rate


@dataclass(frozen=True, slots=True)
class Resending:
    """All that a task has to know. Pickled: the application travels as its reference."""

    ledger: Ledger
    plan: Plan
    app: str
    rate: float | None

    def __call__(self, number: int) -> bytes:
        """Send a chunk, unless that is done, and say what came of it."""
        name = self.plan.chunks[number]
        done = self.ledger.chunk(name)
        if done is None or done.failed:
            with open_publisher(self.app) as publisher:
                done = send_chunk(publisher, self.ledger, self.plan, name, Pace(self.rate))
        return msgspec.json.encode(done)


def scope_of(ledger: Ledger, chunk: int) -> Once:
    """Under what a chunk is sent once.

    The rows of a chunk are fixed, so each is a part of its own: the transport has to look for an
    id among those of one chunk only.
    """
    return Once(f"replay:{ledger.replay_id}", chunk)


def _nobody(_: int) -> None:
    """Nobody wants to know how many more were sent."""


def send_chunk(
    publisher: Publisher,
    ledger: Ledger,
    plan: Plan,
    name: str,
    pace: Pace,
    report: Callable[[int], None] = _nobody,
) -> Chunk:
    """Send the rows of a chunk that were not sent, and note it.

    Killed before the note, it sends the chunk again: a transport that can (``capabilities.once``)
    does not store those rows again, another one does, under the same ids.
    """
    before = ledger.chunk(name) or Chunk()
    only = {failure.row for failure in before.failed} or None
    tally = _Tally(before.sent, before.skipped)
    once = scope_of(ledger, plan.chunks.index(name))
    with ThreadPoolExecutor(1, thread_name_prefix="matador-replay") as background:
        # While the broker stores some, the next are made.
        sending: Future[int] | None = None
        rows = (
            one
            for one in _items(publisher, ledger, plan, name, tally.failed)
            if only is None or one[0] in only
        )
        while portion := list(islice(rows, pace.portion)):
            if sending is not None:
                report(sending.result())
            pace.wait(len(portion))
            sending = background.submit(tally.publish, publisher, portion, once)
        if sending is not None:
            report(sending.result())
    done = Chunk(tally.sent, tally.skipped, tuple(tally.failed))
    ledger.note(name, done)
    return done


class _Tally:
    """What came of the rows of a chunk so far."""

    def __init__(self, sent: int, skipped: int) -> None:
        self.sent = sent
        self.skipped = skipped
        self.failed: list[Failure] = []

    def publish(self, publisher: Publisher, portion: Sequence[tuple[int, Item]], once: Once) -> int:
        """Publish some rows; how many messages that were."""
        before = self.sent
        results = publisher.publish([item for _, item in portion], once)
        for (row, _), result in zip(portion, results, strict=True):
            if result.errors:  # all its messages are counted once none of them fails
                self.failed.append(Failure(row, str(result.errors[0])))
            else:
                self.sent += result.sent
                self.skipped += result.skipped
        return self.sent - before


def _items(
    publisher: Publisher, ledger: Ledger, plan: Plan, name: str, failed: list[Failure]
) -> Iterator[tuple[int, Item]]:
    file = parquet.ParquetFile(ledger.rows / name)
    row = 0
    if plan.kind == "backfill":
        incoming = Incoming(publisher.app.schema, plan.event, f"{ledger.replay_id}/{name}")
    else:
        incoming = None
    maker = _Again(publisher, ledger.replay_id, plan)
    for batch in file.iter_batches(_MOST):
        if incoming is not None:
            for item in incoming.items(batch):
                yield row, item
                row += 1
            continue
        columns = [batch.column(column).to_pylist() for column in _COLUMNS]
        for values in zip(*columns, strict=True):
            try:
                item = maker.item(*values)
            except MatadorError as error:
                failed.append(Failure(row, str(error)))
            else:
                if item is not None:
                    yield row, item
            row += 1


class _Again:
    """Makes the events of a replay out of rows of the lake."""

    def __init__(self, publisher: Publisher, replay_id: str, plan: Plan) -> None:
        self._publisher = publisher
        self._replay_id = replay_id
        self._plan = plan
        self._target = Target(plan.subscriber, plan.queue, plan.everybody)
        self._routes: dict[tuple[str, str], tuple[EventType, str] | None] = {}

    def item(
        self,
        original: str,
        event_key: str,
        subscriber: str,
        correlation_id: str | None,
        metadata: Sequence[tuple[str, str]] | None,
        data: str,
        before: str | None,
    ) -> Item | None:
        """The event of a row, None if nobody receives it any more.

        Raises:
            InvalidEventError: its payload does not fit its type any more.
        """
        try:
            route = self._routes[event_key, subscriber]
        except KeyError:
            route = self._routes[event_key, subscriber] = self._route(event_key, subscriber)
        if route is None:
            return None
        event, name = route
        decode = self._publisher.json.decode_payload
        # The id of an envelope is made of the replay's, the original's and the subscriber's name:
        # for one subscriber here, for all of them by the fan-out.
        everybody = self._plan.everybody
        parts = (self._replay_id, original)
        options = SendOptions(
            metadata={**dict(metadata or ()), REPLAY_ID: self._replay_id, REPLAY_OF: original},
            correlation_id=correlation_id,
            before=None if before is None else decode(event, msgspec.Raw(before.encode())),
            id="\x1f".join(parts) if everybody else derived_id(*parts, name),
            subscribers=None if everybody else (name,),
            queue=self._plan.queue,
        )
        return Item(event, decode(event, msgspec.Raw(data.encode())), options)

    def _route(self, event_key: str, subscriber: str) -> tuple[EventType, str] | None:
        app = self._publisher.app
        names = receivers(app, event_key, subscriber, self._target)
        return (app.schema.event(event_key), names[0]) if names else None
