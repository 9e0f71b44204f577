"""Dead letters of every way in: finds, reads, redrives and purges them.

Every receiving service has one: ``app.dead_letters``, ``server.dead_letters`` and so on. The way in
reads its stored messages: see ``StoredReader``. Safe to use while workers run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from matador.codec.base import RawEnvelope
from matador.errors import MatadorError, QueueNotFoundError, UnsupportedError
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Complete,
    Delivery,
    Headers,
    Message,
    Properties,
    Receipt,
    Release,
    Retry,
    Settlement,
    StoredMessage,
)
from matador.model.topology import DeadLetterKind, Topology, WorkQueue
from matador.transports.base import Browsing, Measuring, Transport, browses_dead_letters
from matador.transports.clock import Clock

BATCH = 100
"""How many dead letters are moved at once. If the process is killed meanwhile, it holds them for a
lease."""

_LOOK_AGAIN = 0.5

Where: TypeAlias = Callable[[Any], bool]
"""A condition on a payload, given as plain data."""

Settling: TypeAlias = Callable[["Place", Delivery], Settlement]
Progress: TypeAlias = Callable[[int], None]


# -- what a way in knows of a stored message ------------------------------------------------------


def _nothing() -> Any:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a stored message, read without running a handler.

    Attributes:
        id: the id of the message, the same in every attempt.
        name: the event key, the command, the routing key, or the consumer.
        receiver: the subscriber or the handler; empty if unknown.
        attempts: the number of the last attempt; 0 if there was none.
        first_error: the text of the first error.
        last_error: the text of the last error.
        correlation_id: the sender's id to trace related messages.
        metadata: the sender's data besides the payload.
        created_at: when it was created, if the message contains it.
        original_queue: the full name of the queue it comes from, if the message contains it.
        plain: decodes the payload to plain data; None if that is not possible.
        envelope: the envelope of an event; None for messages without one.
        problem: why it cannot be decoded; None if it can.
    """

    id: str
    name: str = ""
    receiver: str = ""
    attempts: int = 0
    first_error: str | None = None
    last_error: str | None = None
    correlation_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    created_at: datetime | None = None
    original_queue: str | None = None
    plain: Callable[[], Any] = _nothing
    envelope: RawEnvelope | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A new payload for a message, as plain data.

    ``expected``: the payload as it was when it was edited; None: any.
    """

    data: Any
    expected: Any = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """A message that is stored again as a new one."""

    body: bytes
    headers: Headers
    properties: Properties | None


class StoredReader(Protocol):
    """Reads and renews the stored messages of a way in. Needs no connection."""

    def read(self, delivery: Delivery, queue: str) -> Contents:
        """Read a message. Must not raise, even for foreign data.

        ``queue`` is the full name of its work queue; that of ``delivery`` is where it is now.
        """
        ...

    def renewed(self, delivery: Delivery, queue: str, edit: Edit | None = None) -> Fresh:
        """The message with its attempts, errors and deadline reset, and perhaps another payload.

        A message that cannot be decoded keeps its body.

        Raises:
            MatadorError: the edit cannot be applied.
        """
        ...

    def checkpoint_id(self, delivery: Delivery, id: str, queue: str) -> str:
        """The id under which the steps of a resumable handler are stored."""
        ...


CHANGED = "the payload was changed meanwhile"
"""The reason for refusing an edit whose ``expected`` payload is outdated."""


def without_reason(headers: Headers) -> Headers:
    """The headers of a dead letter without those that describe its failure."""
    return {name: value for name, value in headers.items() if name not in _OF_DEAD_LETTERS}


_OF_DEAD_LETTERS = frozenset((REASON_HEADER, ERROR_TYPE_HEADER, TRACEBACK_HEADER))


def delivery_of(stored: StoredMessage) -> Delivery:
    """A stored message as a delivery, for reading only."""
    receipt = Receipt(
        stored.queue, None, priority=stored.priority, ordering_key=stored.ordering_key
    )
    return Delivery(stored.body, stored.headers, receipt, None, stored.properties, stored.id)


# -- choosing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects dead letters that match every given criterion.

    Attributes:
        queue: the short or full name of the work queue.
        kind: ``unhandled``, ``undeliverable`` or ``dlq``.
        name: the event key, the command, the routing key, or the consumer.
        subscriber: the name of the subscriber or the handler.
        error: text in the reason or the errors; ignores case.
        error_type: the type of the error, with or without its module: ``TimeoutError``.
        where: a condition on the payload.
        ids: ids or prefixes of ids.
        exactly: full ids.
        undecodable: True: only letters that cannot be decoded; False: only those that can.

    Example:
        >>> chosen = Selection(queue="billing", error_type="TimeoutError")
    """

    queue: str | None = None
    kind: DeadLetterKind | None = None
    name: str | None = None
    subscriber: str | None = None
    error: str | None = None
    error_type: str | None = None
    where: Where | None = None
    ids: tuple[str, ...] = ()
    exactly: frozenset[str] | None = None
    undecodable: bool | None = None

    def fits(self, letter: Letter) -> bool:
        """Whether a dead letter is selected."""
        if self.ids and not any(letter.id.startswith(one) for one in self.ids):
            return False
        if self.exactly is not None and letter.id not in self.exactly:
            return False
        undecodable = letter.problem is not None
        if self.undecodable is not None and self.undecodable != undecodable:
            return False
        if self.error is not None:
            wanted = self.error.casefold()
            if not any(wanted in text.casefold() for text in letter.texts()):
                return False
        if self.error_type is not None:
            kind = letter.error_type or ""
            if self.error_type not in (kind, kind.rpartition(".")[2]):
                return False
        return (
            self.name in (None, letter.name)
            and (self.subscriber is None or self.subscriber in letter.receiver.split(", "))
            and (self.where is None or (not undecodable and self.where(letter.payload)))
        )

    @property
    def whole_queues(self) -> bool:
        """Whether it selects all dead letters of some queues and kinds."""
        return self == Selection(queue=self.queue, kind=self.kind)


@dataclass(frozen=True)
class Letter:
    """One dead letter.

    Attributes:
        stored: the message as it is stored.
        queue: the work queue that it comes from.
        kind: ``unhandled``, ``undeliverable``, or ``dlq`` for messages without an envelope.
        contents: its contents, as read by its way in.
    """

    stored: StoredMessage
    queue: WorkQueue
    kind: DeadLetterKind
    contents: Contents

    @property
    def id(self) -> str:
        """The id of the message, or its position if it has none."""
        return self.contents.id

    @property
    def name(self) -> str:
        """The event key, the command, the routing key, or the consumer; empty if unknown."""
        return self.contents.name

    @property
    def receiver(self) -> str:
        """The subscriber or the handler, where it is known; several are separated by commas."""
        return self.contents.receiver

    @property
    def attempts(self) -> int:
        """The number of the last attempt; 0 if there was none, or it is not known."""
        return self.contents.attempts

    @property
    def reason(self) -> str | None:
        """The reason why it is a dead letter."""
        return self.stored.reason

    @property
    def error_type(self) -> str | None:
        """The type of the error, with its module."""
        return self.stored.error_type

    @property
    def error(self) -> str:
        """The last error, or else the reason."""
        return self.contents.last_error or self.stored.reason or self.problem or ""

    @property
    def traceback(self) -> str | None:
        """The traceback of the error, where it is stored."""
        return self.stored.traceback

    @property
    def problem(self) -> str | None:
        """The reason why it cannot be decoded; None if it can."""
        return self.contents.problem

    @property
    def envelope(self) -> RawEnvelope | None:
        """The envelope of an event; None if it cannot be decoded, and in other ways in."""
        return self.contents.envelope

    @property
    def held(self) -> bool:
        """Whether another process is moving it now."""
        return self.stored.state == "in-flight"

    @cached_property
    def payload(self) -> Any:
        """The payload as plain data; None if it cannot be read."""
        return self.contents.plain()

    def texts(self) -> Iterator[str]:
        """The reason and the errors."""
        contents = self.contents
        for text in (
            self.stored.reason,
            contents.problem,
            contents.first_error,
            contents.last_error,
        ):
            if text:
                yield text


class Place(msgspec.Struct, frozen=True):
    """The position of a selected dead letter, and the queue (``home``) to redrive it to."""

    dead_letters: str
    position: str
    id: str
    home: str


@dataclass(slots=True)
class Moved:
    """The result of redriving or purging.

    Attributes:
        done: how many were moved.
        gone: how many no longer existed, because another process moved them.
        held: how many are held by another process, which may have been killed.
        failed: the ids of those that could not be moved, and why. They were left in place.
    """

    done: int = 0
    gone: int = 0
    held: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class DeadLetterOffice:
    """Finds dead letters and moves them. The transport must be connected.

    Belongs to the event loop of its service; ``check`` raises an error in another one. Each letter
    is moved in one step, so an interrupted move can be repeated: no letter is lost or moved twice.
    ``forget`` deletes checkpoints; None: there are none.

    Example:
        >>> office = app.dead_letters
        >>> chosen = await office.choose(Selection(subscriber="charge", error="timeout"))
        >>> moved = await office.redrive(chosen)
    """

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        reader: StoredReader,
        clock: Clock,
        check: Callable[[], None],
        forget: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        self._transport = transport
        self._topology = topology
        self._reader = reader
        self._clock = clock
        self._check = check
        self._forget = forget

    @property
    def patience(self) -> float:
        """Seconds after which letters held by a killed process can be moved again."""
        return (self._transport.capabilities.lease or 0.0) + 1.0

    def queues(self, selection: Selection | None = None) -> list[tuple[WorkQueue, DeadLetterKind]]:
        """The selected work queues and kinds.

        Raises:
            QueueNotFoundError: no such work queue.
        """
        chosen = selection or Selection()
        only = None if chosen.queue is None else self._topology.queue(chosen.queue)
        return [
            (queue, kind)
            for queue, kind, _ in self._topology.dead_letter_names()
            if (only is None or queue == only) and chosen.kind in (None, kind)
        ]

    async def browse(
        self, selection: Selection | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Letter]:
        """The selected dead letters, queue by queue, oldest first.

        Raises:
            UnsupportedError: the transport cannot browse messages.
            QueueNotFoundError: the queue is unknown or was never created.
        """
        chosen = selection or Selection()
        found = 0
        for queue, kind in self.queues(chosen):
            async for letter in self.browse_queue(queue, kind):
                if not chosen.fits(letter):
                    continue
                if limit is not None and found >= limit:
                    return
                found += 1
                yield letter

    async def browse_queue(
        self,
        queue: WorkQueue,
        kind: DeadLetterKind,
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Letter]:
        """The dead letters of one queue and kind, oldest first, starting behind a position.

        Raises:
            UnsupportedError: the transport cannot browse messages.
            QueueNotFoundError: the queue was never created.
        """
        self._check()
        name = self._topology.dead_letter_name(queue.name, kind)
        async for stored in self._browsing().browse(name, after=after, limit=limit):
            yield self.read(stored, queue, kind)

    def place(self, letter: Letter) -> Place:
        """Where a dead letter is, in order to move it."""
        stored = letter.stored
        return Place(stored.queue, stored.position, letter.id, self._home(letter))

    async def choose(
        self, selection: Selection | None = None, *, limit: int | None = None
    ) -> list[Place]:
        """The positions of the dead letters selected now. Later ones are not included."""
        return [self.place(letter) async for letter in self.browse(selection, limit=limit)]

    async def count(self, selection: Selection | None = None) -> int:
        """How many dead letters are selected.

        The broker counts whole queues, if it can. Otherwise, each dead letter is read.

        Raises:
            UnsupportedError: the transport can neither count nor browse messages.
            QueueNotFoundError: there is no such work queue.
        """
        chosen, transport = selection or Selection(), self._transport
        counts = transport.capabilities.depth and isinstance(transport, Measuring)
        if not (counts and chosen.whole_queues):
            return sum([1 async for _ in self.browse(chosen)])
        self._check()
        total = 0
        for queue, kind in self.queues(chosen):
            try:
                depth = await cast("Measuring", transport).depth(
                    self._topology.dead_letter_name(queue.name, kind)
                )
                total += depth.total
            except QueueNotFoundError:
                continue  # it was never created, so it has none
        return total

    async def redrive(
        self,
        chosen: Selection | Sequence[Place],
        *,
        patience: float = 0.0,
        progress: Progress | None = None,
    ) -> Moved:
        """Send dead letters back to their queues, with their attempts and errors reset.

        ``chosen``: a selection, or places from ``choose``. The messages keep their ids, so
        resumable handlers resume after the last completed step. Waits up to ``patience`` seconds
        for letters that another process holds. ``progress`` is called with the number of letters
        finished since the last call.

        Raises:
            UnsupportedError: the transport cannot browse messages.

        Example:
            >>> moved = await server.dead_letters.redrive(Selection(name="ADD"))
            >>> moved.done
            3
        """

        def again(place: Place, delivery: Delivery) -> Settlement:
            return self._sent_back(place, delivery, self._reader.renewed(delivery, place.home))

        return await self._move(await self._places(chosen), again, patience, progress)

    async def redrive_edited(
        self, place: Place, data: Any, *, expected: Any = None, patience: float = 0.0
    ) -> Moved:
        """``redrive`` one dead letter with another payload, given as plain data.

        ``expected``: the payload as it was when it was edited. If the payload has changed, the
            letter stays in place and counts as failed. The same applies if it cannot be decoded, or
            if the new payload does not match the type of its event.
        """

        edit = Edit(data, expected)

        def edited(place: Place, delivery: Delivery) -> Settlement:
            return self._sent_back(
                place, delivery, self._reader.renewed(delivery, place.home, edit)
            )

        return await self._move([place], edited, patience, None)

    async def purge(
        self,
        chosen: Selection | Sequence[Place],
        *,
        patience: float = 0.0,
        progress: Progress | None = None,
    ) -> Moved:
        """Delete dead letters and their checkpoints. The checkpoint store must be open.

        Arguments are those of ``redrive``.
        """

        def delete(_: Place, delivery: Delivery) -> Settlement:
            return Complete(delivery.receipt)

        async def forget(place: Place, delivery: Delivery) -> None:
            if self._forget is not None:
                steps = self._reader.checkpoint_id(delivery, place.id, place.home)
                await self._forget(steps)

        return await self._move(await self._places(chosen), delete, patience, progress, forget)

    def read(self, stored: StoredMessage, queue: WorkQueue, kind: DeadLetterKind) -> Letter:
        """A stored message as a dead letter."""
        full = self._topology.full_name(queue.name)
        return Letter(stored, queue, kind, self._reader.read(delivery_of(stored), full))

    # -- internals --------------------------------------------------------------------------------

    def _browsing(self) -> Browsing:
        transport = self._transport
        if not browses_dead_letters(transport):
            raise UnsupportedError(
                f"{transport.name} cannot browse messages, so its dead letters cannot be listed, "
                f"redriven or purged here"
            )
        return transport

    async def _places(self, chosen: Selection | Sequence[Place]) -> Sequence[Place]:
        return await self.choose(chosen) if isinstance(chosen, Selection) else chosen

    def _home(self, letter: Letter) -> str:
        original = letter.contents.original_queue
        if original is not None and self._topology.has_queue(original):
            return self._topology.full_name(original)
        return self._topology.full_name(letter.queue.name)

    def _sent_back(self, place: Place, delivery: Delivery, fresh: Fresh) -> Settlement:
        receipt = delivery.receipt
        message = Message(
            place.id,
            place.home,
            fresh.body,
            fresh.headers,
            priority=receipt.priority,
            ordering_key=receipt.ordering_key,
            properties=fresh.properties,
        )
        return Retry(receipt, message)

    async def _move(
        self,
        places: Sequence[Place],
        settling: Settling,
        patience: float,
        progress: Progress | None,
        afterwards: Callable[[Place, Delivery], Awaitable[None]] | None = None,
    ) -> Moved:
        progress = progress or (lambda _: None)
        self._check()
        moved = Moved()
        left = list(places)
        until = self._clock.monotonic() + patience
        while left:
            last = self._clock.monotonic() >= until
            missed: list[Place] = []
            for batch in _batches(left):
                moving = asyncio.ensure_future(
                    self._move_batch(batch, settling, moved, progress, afterwards)
                )
                try:
                    missed += await asyncio.shield(moving)
                except asyncio.CancelledError:
                    await moving  # finish the batch, so that nothing stays held
                    raise
            left = await self._still_there(missed)
            moved.gone += len(missed) - len(left)
            progress(len(missed) - len(left))
            if last:
                break
            if left:
                await asyncio.sleep(_LOOK_AGAIN)
        moved.held = len(left)
        return moved

    async def _move_batch(
        self,
        batch: Sequence[Place],
        settling: Settling,
        moved: Moved,
        progress: Progress,
        afterwards: Callable[[Place, Delivery], Awaitable[None]] | None,
    ) -> list[Place]:
        """Move letters of one queue. Returns those that are held or were moved by others."""
        queue, positions = batch[0].dead_letters, [place.position for place in batch]
        found = list(zip(batch, await self._browsing().take(queue, positions), strict=True))
        taken = [(place, delivery) for place, delivery in found if delivery is not None]
        settlements: list[Settlement] = []
        problems: dict[str, str] = {}
        for place, delivery in taken:
            try:
                settlements.append(settling(place, delivery))
            except MatadorError as error:
                problems[place.position] = str(error)
                settlements.append(Release(delivery.receipt))
        try:
            errors = await self._transport.settle(settlements)
        except MatadorError:
            await self._release([delivery for _, delivery in taken])
            raise
        refused: list[Delivery] = []
        for (place, delivery), error in zip(taken, errors, strict=True):
            if error is not None:
                problems[place.position] = str(error)
                refused.append(delivery)
            if place.position in problems:
                moved.failed.append((place.id, problems[place.position]))
                continue
            moved.done += 1
            if afterwards is not None:
                await afterwards(place, delivery)
        await self._release(refused)
        progress(len(taken))
        return [place for place, delivery in found if delivery is None]

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            await self._transport.settle([Release(delivery.receipt) for delivery in deliveries])

    async def _still_there(self, places: Sequence[Place]) -> list[Place]:
        found: set[tuple[str, str]] = set()
        for name in {place.dead_letters for place in places}:
            async for stored in self._browsing().browse(name):
                found.add((name, stored.position))
        return [place for place in places if (place.dead_letters, place.position) in found]


def _batches(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    """Small batches, each from one queue."""
    for _, group in groupby(places, key=lambda place: place.dead_letters):
        of_queue = list(group)
        for start in range(0, len(of_queue), BATCH):
            yield of_queue[start : start + BATCH]
