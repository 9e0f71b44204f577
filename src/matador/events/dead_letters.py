"""The dead letters of an application: finds, reads, redrives and purges them.

For the command line and similar tools. Safe to use while workers are running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from matador.codec.base import Codec, RawEnvelope
from matador.codec.json_text import duplicate_key, find_duplicate_key
from matador.errors import DecodeError, InvalidEventError, MatadorError, UnsupportedError
from matador.events.config import AppConfig
from matador.model.event import EventType
from matador.model.message import (
    REASON_HEADER,
    Complete,
    Delivery,
    Headers,
    Message,
    Release,
    Retry,
    Settlement,
    StoredMessage,
)
from matador.model.topology import DeadLetterKind, WorkQueue
from matador.transports.base import Browsing, BrowsingDeadLetters

BATCH = 100
"""How many letters are moved at once. A process that is killed meanwhile holds them for a lease."""

_LOOK_AGAIN = 0.5

Where: TypeAlias = Callable[[Any], bool]
"""Whether a payload, given as plain data, is selected."""

Settling: TypeAlias = Callable[["Place", Delivery], Settlement]
Progress: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects dead letters that match every given criterion.

    Attributes:
        queue: the short or full name of the work queue.
        kind: ``unhandled`` or ``undeliverable``.
        event: the event key.
        subscriber: the name of the subscriber.
        error: text in the reason or the errors; ignores case.
        where: a condition on the payload.
        ids: ids or prefixes of ids.
        exactly: full ids.
        undecodable: True: only letters that cannot be decoded; False: only those that can.
    """

    queue: str | None = None
    kind: DeadLetterKind | None = None
    event: str | None = None
    subscriber: str | None = None
    error: str | None = None
    where: Where | None = None
    ids: tuple[str, ...] = ()
    exactly: frozenset[str] | None = None
    undecodable: bool | None = None

    def fits(self, letter: Letter) -> bool:
        """Is it one of the selected?"""
        envelope = letter.envelope
        if self.ids and not any(letter.id.startswith(one) for one in self.ids):
            return False
        if self.exactly is not None and letter.id not in self.exactly:
            return False
        if self.undecodable is not None and self.undecodable != (envelope is None):
            return False
        if self.error is not None:
            wanted = self.error.casefold()
            if not any(wanted in text.casefold() for text in letter.texts()):
                return False
        if envelope is None:
            return self.event is None and self.subscriber is None and self.where is None
        docket = envelope.docket
        return (
            self.event in (None, docket.event_key)
            and self.subscriber in (None, docket.target_subscriber)
            and (self.where is None or self.where(letter.payload))
        )


@dataclass(frozen=True)
class Letter:
    """One dead letter.

    ``envelope`` is None if it cannot be decoded; ``problem`` then says why.
    """

    stored: StoredMessage
    queue: WorkQueue
    kind: DeadLetterKind
    envelope: RawEnvelope | None
    problem: str | None
    codec: Codec = field(repr=False)

    @property
    def id(self) -> str:
        """The id of the envelope, or else of the stored message."""
        return self.stored.id if self.envelope is None else self.envelope.id

    @property
    def held(self) -> bool:
        """Is it being moved right now?"""
        return self.stored.state == "in-flight"

    @cached_property
    def payload(self) -> Any:
        """The payload as plain data; None if it cannot be read."""
        return None if self.envelope is None else self._plain(self.envelope.data)

    @cached_property
    def before(self) -> Any:
        """The earlier state as plain data, if there is one."""
        before = None if self.envelope is None else self.envelope.before
        return None if before is None else self._plain(before)

    def texts(self) -> Iterator[str]:
        """The reason and the errors."""
        docket = None if self.envelope is None else self.envelope.docket
        errors = () if docket is None else (docket.first_error, docket.last_error)
        for text in (self.stored.reason, self.problem, *errors):
            if text:
                yield text

    def _plain(self, raw: msgspec.Raw) -> Any:
        try:
            return self.codec.decode_payload(_ANY_EVENT, raw)
        except InvalidEventError:
            return None


_ANY_EVENT = EventType("any", "Any object at all.", dict)


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

    Belongs to the event loop of its application; ``check`` raises an error in another one. Each
    letter is moved in one step, so an interrupted move can be repeated: no letter is lost or moved
    twice.

    Example:
        >>> office = app.dead_letters
        >>> chosen = await office.choose(Selection(subscriber="charge", error="timeout"))
        >>> moved = await office.redrive(chosen)
    """

    def __init__(self, config: AppConfig, check: Callable[[], None]) -> None:
        self._transport = config.transport
        self._topology = config.topology
        self._codec = config.used_codec
        self._schema = config.schema
        self._checkpoints = config.checkpoints
        self._clock = config.clock
        self._check = check

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
            yield self._letter(stored, queue, kind)

    def place(self, letter: Letter) -> Place:
        """Where a dead letter is, in order to move it."""
        stored = letter.stored
        return Place(stored.queue, stored.position, letter.id, self._home(letter))

    async def choose(self, selection: Selection, *, limit: int | None = None) -> list[Place]:
        """The positions of the dead letters selected now. Later ones are not included."""
        return [self.place(letter) async for letter in self.browse(selection, limit=limit)]

    async def redrive(
        self, places: Sequence[Place], *, patience: float = 0.0, progress: Progress | None = None
    ) -> Moved:
        """Send dead letters back to their queues with their attempts reset.

        They keep their ids, so resumable subscribers resume after the last completed step. Waits up
        to ``patience`` seconds for letters that another process holds. ``progress`` is called with
        the number of letters finished since the last call.
        """
        return await self._move(places, self._redriven, patience, progress)

    async def redrive_edited(
        self, place: Place, data: Any, *, expected: Any = None, patience: float = 0.0
    ) -> Moved:
        """``redrive`` one dead letter with another payload, given as plain data.

        ``expected``: the payload as it was when it was edited. If it is another one by now, the
        letter stays where it is and counts as failed; so it does if it cannot be decoded, or if the
        new payload does not match the type of its event.
        """

        def edited(place: Place, delivery: Delivery) -> Settlement:
            envelope = self._decode(delivery.body, delivery.headers)
            event = self._schema.find(envelope.docket.event_key) or _ANY_EVENT
            if expected is not None and self._plain(envelope.data) != expected:
                raise InvalidEventError("the payload was changed by somebody else meanwhile")
            raw = self._codec.encode_payload(event, data)
            return self._again(place, delivery, msgspec.structs.replace(envelope, data=raw))

        return await self._move([place], edited, patience, None)

    async def purge(
        self, places: Sequence[Place], *, patience: float = 0.0, progress: Progress | None = None
    ) -> Moved:
        """Delete dead letters and their checkpoints. The checkpoint store must be open."""

        def delete(_: Place, delivery: Delivery) -> Settlement:
            return Complete(delivery.receipt)

        return await self._move(places, delete, patience, progress, self._checkpoints.delete)

    # -- internals --------------------------------------------------------------------------------

    def _browsing(self) -> Browsing:
        transport = self._transport
        able = transport.capabilities.browse or isinstance(transport, BrowsingDeadLetters)
        if not able or not isinstance(transport, Browsing):
            raise UnsupportedError(
                f"{transport.name} cannot browse messages, so its dead letters cannot be listed, "
                f"redriven or purged here"
            )
        return transport

    def _letter(self, stored: StoredMessage, queue: WorkQueue, kind: DeadLetterKind) -> Letter:
        try:
            envelope, problem = self._decode(stored.body, stored.headers), None
        except DecodeError as error:
            envelope, problem = None, str(error)
        return Letter(stored, queue, kind, envelope, problem, self._codec)

    def _plain(self, raw: msgspec.Raw) -> Any:
        return self._codec.decode_payload(_ANY_EVENT, raw)

    def _decode(self, body: bytes, headers: Any) -> RawEnvelope:
        envelope = self._codec.decode(body, headers, self._clock)
        if body[:1] in b"{ \t\r\n" and (twice := find_duplicate_key(body)) is not None:
            raise DecodeError(duplicate_key(twice))
        return envelope

    def _home(self, letter: Letter) -> str:
        original = None if letter.envelope is None else letter.envelope.docket.original_queue
        if original is not None and self._topology.has_queue(original):
            return self._topology.full_name(original)
        return self._topology.full_name(letter.queue.name)

    def _redriven(self, place: Place, delivery: Delivery) -> Settlement:
        try:
            envelope = self._decode(delivery.body, delivery.headers)
        except DecodeError:
            headers = {k: v for k, v in delivery.headers.items() if k != REASON_HEADER}
            body = delivery.body
        else:
            return self._again(place, delivery, envelope)
        return self._sent_back(place, delivery, body, headers)

    def _again(self, place: Place, delivery: Delivery, envelope: RawEnvelope) -> Settlement:
        """The envelope with its attempts reset."""
        docket = msgspec.structs.replace(
            envelope.docket, attempts=1, first_error=None, last_error=None, scheduled_for=None
        )
        encoded = self._codec.encode(msgspec.structs.replace(envelope, docket=docket))
        return self._sent_back(place, delivery, encoded.body, encoded.headers)

    def _sent_back(
        self, place: Place, delivery: Delivery, body: bytes, headers: Headers
    ) -> Settlement:
        receipt = delivery.receipt
        message = Message(
            place.id,
            place.home,
            body,
            headers,
            priority=receipt.priority,
            ordering_key=receipt.ordering_key,
            properties=delivery.properties,
        )
        return Retry(receipt, message)

    async def _move(
        self,
        places: Sequence[Place],
        settling: Settling,
        patience: float,
        progress: Progress | None,
        afterwards: Callable[[str], Any] | None = None,
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
        afterwards: Callable[[str], Any] | None,
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
                await afterwards(place.id)
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
