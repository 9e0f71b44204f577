"""Carries out settlements of deliveries from lists: each atomic in one script."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

from matador.errors import MatadorError, MessageTooLargeError, TransportError
from matador.model.message import Complete, DeadLetter, Message, Receipt, Release, Retry, Settlement
from matador.transports.redis.channel import Argument, Channel
from matador.transports.redis.contents import content_of, element_of, letter_of, message_of
from matador.transports.redis.entries import milliseconds
from matador.transports.redis.keys import tag_of
from matador.transports.redis.link import Link
from matador.transports.redis.list_subscription import Held, list_script
from matador.transports.redis.sending import (
    UNWRITABLE,
    Outcomes,
    check_size,
    no_such_queue,
    note,
    refusal,
    unwritable,
)
from matador.transports.redis.settling import lost, target_of

_MOST = 200
_LOST, _NO_QUEUE = 1, 2


class ListSettling:
    """One batch of settlements on its way.

    Args:
        send: stores messages; for a successor in a queue of another hash tag.
        declare: makes a queue of ours that the server has lost.
    """

    def __init__(
        self,
        link: Link,
        channel: Channel,
        key_of: Callable[[str], str],
        consumer: str,
        send: Callable[[Sequence[Message]], Awaitable[Sequence[MatadorError | None]]],
        declare: Callable[[str], Awaitable[None]],
        settlements: Sequence[Settlement],
    ) -> None:
        self._link = link
        self._channel = channel
        self._key_of = key_of
        self._consumer = consumer
        self._send = send
        self._declare = declare
        self._settlements = settlements
        self._outcomes: Outcomes = [None] * len(settlements)

    async def settle(self) -> Outcomes:
        """Do it; for each None, or why it could not be."""
        near: dict[str, list[int]] = {}
        for place, settlement in enumerate(self._settlements):
            if _hold(settlement.receipt) is None:
                self._outcomes[place] = lost(settlement.receipt)
            elif isinstance(settlement, Retry) and not _is_near(settlement):
                self._outcomes[place] = await self._move(settlement)
            else:
                near.setdefault(settlement.receipt.queue, []).append(place)
        for queue, places in near.items():
            # What is given back goes in front: the last one first.
            places.sort(key=self._order)
            for first in range(0, len(places), _MOST):
                missing = await self._settle_near(queue, places[first : first + _MOST])
                if missing and await self._make({target_of(self._settlements[p]) for p in missing}):
                    await self._settle_near(queue, missing)
        return self._outcomes

    async def _make(self, queues: Iterable[str]) -> bool:
        """Make queues that the server has lost; was there one of ours among them?"""
        made = False
        for queue in queues:
            with contextlib.suppress(TransportError):
                await self._declare(queue)
                made = True
        return made

    async def _settle_near(self, queue: str, places: Sequence[int]) -> list[int]:
        """Settle; those that failed for want of a queue."""
        keys = [self._key_of(queue)]
        arguments: list[Argument] = [self._consumer]
        sent: list[int] = []
        for place in places:
            try:
                arguments += self._written(self._settlements[place], keys)
            except (*UNWRITABLE, MessageTooLargeError) as error:
                message = getattr(self._settlements[place], "message", None)
                self._outcomes[place] = unwritable(message, error)
            else:
                sent.append(place)
                self._outcomes[place] = None
        if not sent:
            return []
        missing: list[int] = []
        try:
            codes = await self._link.run_on(self._channel, list_script("settle"), keys, arguments)
        except TransportError as error:
            note(self._outcomes, sent, error)
            return missing
        for place, code in zip(sent, codes, strict=True):
            settlement = self._settlements[place]
            if isinstance(code, bytes):
                self._outcomes[place] = refusal(code, self._link, self._channel)
                continue
            if code == _NO_QUEUE:
                self._outcomes[place] = no_such_queue(target_of(settlement), self._link.where)
                missing.append(place)
                continue
            if code == _LOST:
                self._outcomes[place] = lost(settlement.receipt)
            _let_go(settlement.receipt)
        return missing

    def _written(self, settlement: Settlement, keys: list[str]) -> list[Argument]:
        hold = _hold(settlement.receipt)
        assert hold is not None
        _, message = hold
        successor = _successor(settlement)
        if successor is None:
            return [message, -1 if isinstance(settlement, Complete) else 0, 0, ""]
        delay, content = successor
        target = target_of(settlement)
        target.encode()  # or the whole batch could not be sent
        key = self._key_of(target)
        if key not in keys[1:]:
            keys.append(key)
        return [message, keys.index(key, 1) + 1, delay, content]

    async def _move(self, retry: Retry) -> MatadorError | None:
        """A successor in a queue elsewhere: stored first, the original forgotten after."""
        hold = _hold(retry.receipt)
        assert hold is not None
        held, message = hold
        list_ = f"{held.base}:held:{self._consumer}"
        try:
            if await self._link.call("LPOS", list_, message) is None:
                _let_go(retry.receipt)
                return lost(retry.receipt)
            (error,) = await self._send([retry.message])
            if error is not None:
                return error
            await self._link.call("LREM", list_, 1, message)
        except TransportError as failure:
            return failure
        _let_go(retry.receipt)
        return None

    def _order(self, place: int) -> int:
        return -place if isinstance(self._settlements[place], Release) else place


def _hold(receipt: Receipt) -> tuple[Held, bytes] | None:
    handle = receipt.handle
    if type(handle) is tuple:
        hold = cast("tuple[Held, bytes]", handle)
        if type(hold[0]) is Held:
            return hold
    return None


def _let_go(receipt: Receipt) -> None:
    hold = _hold(receipt)
    if hold is not None:
        hold[0].messages.discard(hold[1])


def _successor(settlement: Settlement) -> tuple[int, bytes] | None:
    """Delay and content of what is stored in place of the delivery."""
    match settlement:
        case Retry(message=message):
            check_size(message)
            return milliseconds(message.delay), content_of(message)
        case DeadLetter(receipt=receipt):
            hold = _hold(receipt)
            assert hold is not None
            element = hold[1]
            return 0, letter_of(
                settlement, lambda: message_of(receipt.queue, element_of(element)[2])
            )
        case _:
            return None


def _is_near(retry: Retry) -> bool:
    return tag_of(retry.message.queue) == tag_of(retry.receipt.queue)
