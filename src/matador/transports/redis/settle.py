"""Carries out settlements: completions in batches, all others atomically in a script."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, cast

from matador.errors import TransportError
from matador.model.message import Complete, DeadLetter, Message, Receipt, Retry, Settlement
from matador.model.text import SHORT_TEXT, storable_text
from matador.model.topology import dead_letter_name
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.redis.client import Kind, RedisClient, script
from matador.transports.redis.send import (
    Outcomes,
    check_size,
    cut,
    note,
    refusal,
    run_together,
    written,
)
from matador.transports.redis.wire import Hold, Lane
from matador.transports.redis_client.connection import Argument, PipelinedConnection
from matador.transports.redis_client.errors import UNWRITABLE, unstorable

_LOST, _NO_QUEUE = 1, 2
_ALL_FIELDS, _BODY_ALONE = 0, -1
_MOST = 1000
_MOST_EACH = 200
_HOLD_PARTS = 3
_NO_HOLD: Hold = (Lane("", "", "", ""), b"", 0)


class SettleBatch(ABC):
    """One batch of settlements, of streams or of lists."""

    _kind: ClassVar[Kind]

    def __init__(
        self,
        client: RedisClient,
        connection: PipelinedConnection,
        key_of: Callable[[str], str],
        settlements: Sequence[Settlement],
    ) -> None:
        self._client = client
        self._connection = connection
        self._key_of = key_of
        self._settlements = settlements
        self._outcomes: Outcomes = [None] * len(settlements)

    @abstractmethod
    def _written(self, settlement: Settlement, target: int) -> list[Argument]:
        """A settlement for the script; ``target``: index of the successor's queue, 0 for none."""

    async def settle(self) -> Outcomes:
        """Settle; for each, None or the error."""
        completed: dict[tuple[Lane, int], tuple[list[int], list[bytes]]] = {}
        others: dict[str, list[int]] = {}
        for place, settlement in enumerate(self._settlements):
            lane, item, claim = hold = hold_of(settlement.receipt)
            if hold is _NO_HOLD:
                self._outcomes[place] = lease_lost(settlement.receipt.queue)
            elif type(settlement) is Complete and self._kind == "stream":
                places, ids = completed.get((lane, claim)) or completed.setdefault(
                    (lane, claim), ([], [])
                )
                places.append(place)
                ids.append(item)
            else:
                others.setdefault(lane.base, []).append(place)
        steps: list[Coroutine[Any, Any, None]] = []
        for (lane, claim), (places, ids) in completed.items():
            steps += [
                self._complete(lane, claim, places[first : first + _MOST], ids[first:][:_MOST])
                for first in range(0, len(places), _MOST)
            ]
        for base, places in others.items():
            messages = {place: self._message(place) for place in places}
            ordered = cut(self._ordered(places), messages, _MOST_EACH)
            steps += [self._settle_each(base, some) for some in ordered]
        await run_together(steps)
        return self._outcomes

    def _ordered(self, places: list[int]) -> list[int]:
        return places

    def _message(self, place: int) -> Message | None:
        settlement = self._settlements[place]
        return settlement.message if isinstance(settlement, (Retry, DeadLetter)) else None

    async def _complete(self, lane: Lane, claim: int, places: list[int], ids: list[bytes]) -> None:
        try:
            missing: list[int] = await self._client.run_on(
                self._connection,
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
            self._outcomes[place] = lease_lost(self._settlements[place].receipt.queue)

    async def _settle_each(self, base: str, places: Sequence[int]) -> None:
        """Settle deliveries of one queue in one call."""
        keys = [base]
        arguments: list[Argument] = []
        sent: list[int] = []
        for place in places:
            settlement, message = self._settlements[place], self._message(place)
            try:
                if message is not None:
                    check_size(message)
                arguments += self._written(settlement, self._target(settlement, keys))
            except UNWRITABLE as error:
                what = f"message {message.id!r}" if message is not None else "the dead letter"
                self._outcomes[place] = unstorable(what, error)
            else:
                sent.append(place)
        if not sent:
            return
        try:
            codes: list[int | bytes] = await self._client.run_on(
                self._connection, script("settle", self._kind), keys, arguments
            )
        except TransportError as error:
            note(self._outcomes, sent, error)
            return
        for place, code in zip(sent, codes, strict=True):
            settlement = self._settlements[place]
            if isinstance(code, bytes):
                self._outcomes[place] = refusal(code, self._client, self._connection)
            elif code == _NO_QUEUE:
                self._outcomes[place] = queue_not_found(target_of(settlement), self._client.where)
            else:
                lane, item, _ = hold_of(settlement.receipt)
                lane.held.discard(item)
                if code == _LOST:
                    self._outcomes[place] = lease_lost(settlement.receipt.queue)

    def _target(self, settlement: Settlement, keys: list[str]) -> int:
        """The index of the successor's queue among the keys of the script; 0: none."""
        target = target_of(settlement)
        if not target:
            return 0
        target.encode()  # or the whole batch could not be sent
        key = self._key_of(target)
        if key not in keys[1:]:
            keys.append(key)
        return keys.index(key, 1) + 1


class StreamSettleBatch(SettleBatch):
    """Settlements of deliveries from streams."""

    _kind = "stream"

    def _written(self, settlement: Settlement, target: int) -> list[Argument]:
        lane, id_, claim = hold_of(settlement.receipt)
        front: list[Argument] = [lane.name, lane.consumer, id_, claim, target]
        match settlement:
            case DeadLetter(message=message, bare=bare):
                reason = storable_text(settlement.reason, SHORT_TEXT) if bare else settlement.reason
                if bare or message is None:
                    count = _BODY_ALONE if bare else _ALL_FIELDS
                    return [*front, 0, "", reason.encode(), count]
                _, priority, count, *fields = written(message)
                return [*front, 0, priority, reason.encode(), count, *fields]
            case Retry(message=message):
                delay, priority, count, *fields = written(message)
                return [*front, delay, priority, "", count, *fields]
            case _:
                return [*front, 0, "", "", 0]


async def renew(
    client: RedisClient, connection: PipelinedConnection, receipts: Sequence[Receipt]
) -> list[bool]:
    """Renew the leases of deliveries; for each, whether its lease was still valid."""
    kept = [False] * len(receipts)
    lanes: dict[Lane, list[int]] = {}
    for place, receipt in enumerate(receipts):
        hold = hold_of(receipt)
        if hold is not _NO_HOLD:
            lanes.setdefault(hold[0], []).append(place)

    async def renew_lane(lane: Lane, places: list[int]) -> None:
        arguments: list[Argument] = [lane.name, lane.consumer]
        for place in places:
            arguments += hold_of(receipts[place])[1:]
        answers: list[int] = await client.run_on(
            connection, script("renew"), [lane.base], arguments
        )
        for place, answer in zip(places, answers, strict=True):
            kept[place] = answer == 1
            if not answer:
                lane.held.discard(hold_of(receipts[place])[1])

    await asyncio.gather(*(renew_lane(lane, places) for lane, places in lanes.items()))
    return kept


def hold_of(receipt: Receipt) -> Hold:
    """The handle of a delivery; the handle of another transport counts as lost."""
    hold = cast("Hold", receipt.handle)
    is_ours = type(hold) is tuple and len(hold) == _HOLD_PARTS and type(hold[0]) is Lane
    return hold if is_ours else _NO_HOLD


def target_of(settlement: Settlement) -> str:
    """The queue of the successor; empty: there is none."""
    match settlement:
        case Retry(message=message):
            return message.queue
        case DeadLetter(receipt=receipt, kind=kind):
            return dead_letter_name(receipt.queue, kind)
        case _:
            return ""
