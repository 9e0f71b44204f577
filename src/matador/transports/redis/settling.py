"""Carries out settlements: completions many at a time, all others each atomic in one script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, cast

from matador.errors import LeaseLostError, MessageTooLargeError, TransportError
from matador.model.message import Complete, DeadLetter, Message, Receipt, Retry, Settlement
from matador.model.text import SHORT_TEXT, storable_text
from matador.model.topology import dead_letter_name
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.entries import Hold, Lane
from matador.transports.redis.keys import tag_of
from matador.transports.redis.link import Link
from matador.transports.redis.scripts import script
from matador.transports.redis.sending import (
    UNWRITABLE,
    Outcomes,
    no_such_queue,
    note,
    refusal,
    store,
    unwritable,
    written,
)

_LOST, _NO_QUEUE = 1, 2
_ALL_FIELDS, _BODY_ALONE = 0, -1
_MOST = 1000
_MOST_EACH = 200
_MOST_BYTES = 1 << 20
_HOLD_PARTS = 3
_NO_HOLD: Hold = (Lane("", "", "", ""), b"", 0)


class Settling:
    """One batch of settlements on its way."""

    def __init__(
        self,
        link: Link,
        channel: Channel,
        key_of: Callable[[str], str],
        settlements: Sequence[Settlement],
    ) -> None:
        self._link = link
        self._channel = channel
        self._key_of = key_of
        self._settlements = settlements
        self._outcomes: Outcomes = [None] * len(settlements)

    async def settle(self) -> Outcomes:
        """Do it; for each None, or why it could not be."""
        completed: dict[tuple[Lane, int], tuple[list[int], list[bytes]]] = {}
        others: dict[str, list[int]] = {}
        moved: list[int] = []
        for place, settlement in enumerate(self._settlements):
            hold = hold_of(settlement.receipt)
            if hold is _NO_HOLD:
                self._outcomes[place] = lost(settlement.receipt)
            elif type(settlement) is Complete:
                lane, id_, claim = hold
                places, ids = completed.get((lane, claim)) or completed.setdefault(
                    (lane, claim), ([], [])
                )
                places.append(place)
                ids.append(id_)
            elif type(settlement) is Retry and not _is_near(settlement):
                moved.append(place)
            else:
                others.setdefault(hold[0].base, []).append(place)
        steps: list[Coroutine[Any, Any, None]] = []
        for (lane, claim), (places, ids) in completed.items():
            steps += [
                self._complete(lane, claim, places[first : first + _MOST], ids[first:][:_MOST])
                for first in range(0, len(places), _MOST)
            ]
        for base, places in others.items():
            steps += [self._settle_each(base, some) for some in self._cut(places)]
        steps += [self._move(place) for place in moved]
        if len(steps) == 1:
            await steps[0]
        else:
            await asyncio.gather(*steps)
        return self._outcomes

    def _cut(self, places: list[int]) -> Iterator[list[int]]:
        """Places of settlements that one call can carry."""
        some: list[int] = []
        size = 0
        for place in places:
            message = getattr(self._settlements[place], "message", None)
            size += len(message.body) if isinstance(message, Message) else 0
            some.append(place)
            if len(some) >= _MOST_EACH or size >= _MOST_BYTES:
                yield some
                some, size = [], 0
        if some:
            yield some

    async def _complete(self, lane: Lane, claim: int, places: list[int], ids: list[bytes]) -> None:
        try:
            missing: list[int] = await self._link.run_on(
                self._channel,
                script("complete"),
                [lane.base],
                [lane.name, lane.consumer, claim, *ids],
            )
        except TransportError as error:
            note(self._outcomes, places, error)
            return
        lane.held.difference_update(ids)
        for index in missing:
            place = places[index]
            self._outcomes[place] = lost(self._settlements[place].receipt)

    async def _settle_each(self, base: str, places: list[int]) -> None:
        keys = [base]
        arguments: list[Argument] = []
        sent: list[int] = []
        for place in places:
            try:
                arguments += self._arguments(self._settlements[place], keys)
            except (*UNWRITABLE, MessageTooLargeError) as error:
                message = getattr(self._settlements[place], "message", None)
                self._outcomes[place] = unwritable(message, error)
            else:
                sent.append(place)
        if not sent:
            return
        try:
            codes: list[int | bytes] = await self._link.run_on(
                self._channel, script("settle"), keys, arguments
            )
        except TransportError as error:
            note(self._outcomes, sent, error)
            return
        for place, code in zip(sent, codes, strict=True):
            settlement = self._settlements[place]
            if isinstance(code, bytes):
                self._outcomes[place] = refusal(code, self._link, self._channel)
                continue
            if code == _NO_QUEUE:
                self._outcomes[place] = no_such_queue(target_of(settlement), self._link.where)
                continue
            if code == _LOST:
                self._outcomes[place] = lost(settlement.receipt)
            lane, id_, _ = hold_of(settlement.receipt)
            lane.held.discard(id_)

    def _arguments(self, settlement: Settlement, keys: list[str]) -> list[Argument]:
        lane, id_, claim = hold_of(settlement.receipt)
        front: list[Argument] = [lane.name, lane.consumer, id_, claim]
        target = target_of(settlement)
        if not target:
            return [*front, 0, 0, "", "", 0]
        target.encode()  # or the whole batch could not be sent
        key = self._key_of(target)
        if key not in keys[1:]:
            keys.append(key)
        index = keys.index(key, 1) + 1
        if isinstance(settlement, DeadLetter):
            bare, message = settlement.bare, settlement.message
            if bare or message is None:
                form = _BODY_ALONE if bare else _ALL_FIELDS
                return [*front, index, 0, "", reason_of(settlement), form]
            _, priority, count, *fields = written(message)
            return [*front, index, 0, priority, reason_of(settlement), count, *fields]
        assert isinstance(settlement, Retry)
        delay, priority, count, *fields = written(settlement.message)
        return [*front, index, delay, priority, "", count, *fields]

    async def _move(self, place: int) -> None:
        """A successor in a queue elsewhere: stored first, the original completed after."""
        settlement = self._settlements[place]
        assert isinstance(settlement, Retry)
        hold = hold_of(settlement.receipt)
        try:
            (kept,) = await renew(self._link, self._channel, [settlement.receipt])
            if not kept:
                self._outcomes[place] = lost(settlement.receipt)
                return
            (error,) = await store(self._link, self._key_of, [settlement.message])
        except TransportError as failure:
            error = failure
        if error is not None:
            self._outcomes[place] = error
            return
        await self._complete_moved(hold, place)

    async def _complete_moved(self, hold: Hold, place: int) -> None:
        lane, id_, claim = hold
        try:
            await self._link.run_on(
                self._channel,
                script("settle"),
                [lane.base],
                [lane.name, lane.consumer, id_, claim, -1, 0, "", "", 0],
            )
        except TransportError as error:
            self._outcomes[place] = error
        else:
            lane.held.discard(id_)


async def renew(link: Link, channel: Channel, receipts: Sequence[Receipt]) -> list[bool]:
    """Hold deliveries for another lease from now; for each: was it still held?"""
    kept = [False] * len(receipts)
    lanes: dict[Lane, list[int]] = {}
    for place, receipt in enumerate(receipts):
        hold = hold_of(receipt)
        if hold is not _NO_HOLD:
            lanes.setdefault(hold[0], []).append(place)

    async def renew_lane(lane: Lane, places: list[int]) -> None:
        arguments: list[Argument] = [lane.name, lane.consumer]
        for place in places:
            _, id_, claim = hold_of(receipts[place])
            arguments += (id_, claim)
        answers: list[int] = await link.run_on(channel, script("renew"), [lane.base], arguments)
        for place, answer in zip(places, answers, strict=True):
            kept[place] = answer == 1
            if not answer:
                lane.held.discard(hold_of(receipts[place])[1])

    await asyncio.gather(*(renew_lane(lane, places) for lane, places in lanes.items()))
    return kept


def hold_of(receipt: Receipt) -> Hold:
    """The handle of a delivery; a receipt of another transport has none that fits."""
    handle = receipt.handle
    if type(handle) is tuple:
        hold = cast("Hold", handle)
        if len(hold) == _HOLD_PARTS and type(hold[0]) is Lane:
            return hold
    return _NO_HOLD


def lost(receipt: Receipt) -> LeaseLostError:
    """The error for a delivery that is not in these hands any more."""
    return LeaseLostError(
        f"a delivery from {receipt.queue!r} was settled already, or was taken back"
    )


def reason_of(letter: DeadLetter) -> bytes:
    """Why it is a dead letter; in the form that always fits, whatever the text is.

    Raises:
        UnicodeEncodeError: the text cannot be stored.
    """
    return (storable_text(letter.reason, SHORT_TEXT) if letter.bare else letter.reason).encode()


def target_of(settlement: Settlement) -> str:
    """The queue of the successor; empty: there is none."""
    match settlement:
        case Retry(message=message):
            return message.queue
        case DeadLetter(receipt=receipt, kind=kind):
            return dead_letter_name(receipt.queue, kind)
        case _:
            return ""


def _is_near(settlement: Retry) -> bool:
    """Is the successor's queue in the same slot, so that one script can do both?"""
    return tag_of(settlement.message.queue) == tag_of(settlement.receipt.queue)
