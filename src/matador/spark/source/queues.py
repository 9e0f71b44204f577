"""Reads queues without an event loop. Nothing is consumed."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from matador.errors import UnsupportedError
from matador.model.message import StoredMessage
from matador.spark.source.options import ReadOptions, Subject, subject_of
from matador.transports.base import Browsing, Partitioned, Replaying, Splitting

T = TypeVar("T")

_NUMBERS = re.compile(r"\d+|t")
_LAST = 1 << 62
_PAGE = 1000
_BATCH_ROWS = 4000
_BATCH_BYTES = 8 << 20


def place(position: str) -> tuple[int, ...]:
    """A position as a value that can be compared. All transports use positions of numbers."""
    return tuple(_LAST if part == "t" else int(part) for part in _NUMBERS.findall(position))


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a queue: the messages after one position, up to and including another."""

    after: str | None = None
    until: str | None = None


class QueueReader:
    """One connection to a queue. Belongs to the thread that opened it."""

    def __init__(self, subject: Subject, loop: asyncio.AbstractEventLoop) -> None:
        self._subject = subject
        self._loop = loop

    @property
    def subject(self) -> Subject:
        """The queue that is read."""
        return self._subject

    def spans(self, parts: int, within: Span | None = None) -> list[Span]:
        """Ranges that can be read in parallel; one if the transport cannot split."""
        whole = within or Span()
        transport = self._subject.transport
        if not isinstance(transport, Splitting):
            return [whole]
        ends = self._wait(
            transport.split(self._subject.queue, parts, after=whole.after, until=whole.until)
        )
        starts = [whole.after, *ends]
        return [Span(after, until) for after, until in zip(starts, ends, strict=False)]

    def browse(self, span: Span) -> Iterator[list[StoredMessage]]:
        """The unfinished messages of a range, many at a time."""
        transport = self._subject.transport
        if not transport.capabilities.browse or not isinstance(transport, Browsing):
            raise UnsupportedError(
                f"{transport.name} cannot browse its messages without consuming them; "
                f"{_INSTEAD.format(queue=self._subject.queue)}"
            )
        return self._batches(transport.browse(self._subject.queue, after=span.after), span)

    def replay(self, span: Span) -> Iterator[list[StoredMessage]]:
        """The messages of a range, including finished ones, many at a time."""
        return self._batches(self._replayed(self._replaying(), span.after), span)

    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """Of each partition: the first offset that is there, and the one behind the last."""
        return self._wait(self._partitioned().offsets(self._subject.queue))

    def read_offsets(self, partition: int, start: int, end: int) -> Iterator[list[StoredMessage]]:
        """The messages of a range of offsets, including finished ones, many at a time."""
        messages = self._partitioned().read_offsets(self._subject.queue, partition, start, end)
        return self._pages(messages)

    def end(self, after: str | None, most: int | None) -> str | None:
        """The position ``most`` messages after another, or of the last; None if there is none."""
        replaying = self._replaying()
        # Asked even if the end is found another way: it fails if the queue has no retention.
        try:
            first = self._wait(replaying.read(self._subject.queue, after=after, limit=1))
        except UnsupportedError as error:
            instead = _INSTEAD.format(queue=self._subject.queue)
            raise UnsupportedError(f"{error}; or {instead}") from None
        if not first:
            return None
        transport = self._subject.transport
        if most is None and isinstance(transport, Splitting):
            ends = self._wait(transport.split(self._subject.queue, 1, after=after))
            return ends[-1] if ends else None
        end, seen = None, 0
        for page in self._pages(self._replayed(replaying, after)):
            taken = page if most is None else page[: most - seen]
            end, seen = taken[-1].position, seen + len(taken)
            if most is not None and seen >= most:
                break
        return end

    # -- inside ---------------------------------------------------------------------------------

    def _partitioned(self) -> Partitioned:
        transport = self._subject.transport
        assert isinstance(transport, Partitioned)
        return transport

    def _replaying(self) -> Replaying:
        transport = self._subject.transport
        if not transport.capabilities.replay or not isinstance(transport, Replaying):
            raise UnsupportedError(
                f"a stream needs messages that can be read again, and {transport.name} "
                f"removes finished ones; {_INSTEAD.format(queue=self._subject.queue)}"
            )
        return transport

    async def _replayed(
        self, replaying: Replaying, after: str | None
    ) -> AsyncIterator[StoredMessage]:
        while page := await replaying.read(self._subject.queue, after=after, limit=_PAGE):
            for message in page:
                yield message
            after = page[-1].position

    def _batches(
        self, messages: AsyncIterator[StoredMessage], span: Span
    ) -> Iterator[list[StoredMessage]]:
        last = None if span.until is None else place(span.until)
        for page in self._pages(messages):
            if last is not None and place(page[-1].position) >= last:
                yield [message for message in page if place(message.position) <= last]
                return
            yield page

    def _pages(self, messages: AsyncIterator[StoredMessage]) -> Iterator[list[StoredMessage]]:
        while page := self._wait(_next_page(messages)):
            yield page

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)


@contextlib.contextmanager
def open_queue(options: ReadOptions) -> Generator[QueueReader]:
    """A connection to the queue that the options name, closed at the end."""
    subject = subject_of(options)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(subject.transport.connect())
        try:
            yield QueueReader(subject, loop)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(subject.transport.disconnect())
    finally:
        loop.close()


async def _next_page(messages: AsyncIterator[StoredMessage]) -> list[StoredMessage]:
    page: list[StoredMessage] = []
    size = 0
    async for message in messages:
        page.append(message)
        size += len(message.body)
        if len(page) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            break
    return page


_INSTEAD = (
    "use the application's journal (hooks=[Journal(folder)], then option('journal', folder)), or "
    "copy the queue into one: matador journal tap APP --queue {queue} --journal folder"
)
