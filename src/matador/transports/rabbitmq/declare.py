"""Declares the objects of a topology, and reports those that exist with other arguments.

Also finds out which queues refuse messages while they are full.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pika import exceptions as pika_errors

from matador.errors import MatadorError, NotConnectedError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.transports.rabbitmq.connection import AmqpChannel
from matador.transports.rabbitmq.errors import PRECONDITION_FAILED
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpObject, AmqpQueue

log = logging.getLogger("matador.rabbitmq")

_MOST_DIFFERENCES = 20
# The broker compares these first and stops there. We cannot adopt them, either.
_FIXED = frozenset({"type", "durable", "exclusive", "auto_delete"})
_OVERFLOW = "x-overflow"
_REFUSING = "reject-publish"  # also the beginning of reject-publish-dlx
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for \w+ .*?: "
    r"received (?P<ours>none|.*?) but current is (?P<theirs>.*)$",
    re.DOTALL,
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$")


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """An argument that differs from ours. None: not set."""

    name: str
    ours: str | int | None
    theirs: str | int | None

    def __str__(self) -> str:
        theirs, ours = ("not set" if one is None else repr(one) for one in (self.theirs, self.ours))
        return f"{self.name} is {theirs}, ours would be {ours}"


@dataclass(frozen=True, slots=True)
class Declared:
    """What exists now."""

    notes: list[TopologyNote] = field(default_factory=list[TopologyNote])
    """The differences."""
    refusing: dict[str, str] = field(default_factory=dict[str, str])
    """The ``x-overflow`` of the queues that refuse messages while they are full."""

    def note_overflow(self, queue: str, overflow: str | int | None) -> None:
        """Note what a queue does when it is full, if it refuses messages then."""
        if isinstance(overflow, str) and overflow.startswith(_REFUSING):
            self.refusing[queue] = overflow


def difference_in(text: str) -> ArgumentDifference | None:
    """The difference that the broker reports, if it reports one."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return ArgumentDifference(found["name"], _value(found["ours"]), _value(found["theirs"]))


async def declare(
    session: AmqpSession, plan: Iterable[AmqpObject], *, only_look: bool = False
) -> Declared:
    """Create what is missing, or only compare the queues that exist.

    Raises:
        TransportError: the broker refuses for another reason, or the connection is lost.
    """
    declarer = _Declarer(session)
    result = Declared()
    notes = result.notes
    missing: set[str] = set()
    try:
        for thing in plan:
            if isinstance(thing, AmqpBinding):
                if not only_look and thing.queue not in missing:
                    await declarer.declare(thing)
            elif isinstance(thing, AmqpExchange):
                if not only_look and (different := await declarer.differences(thing)):
                    text = f"exchange {thing.name} is used as it is: {_told(different)}"
                    notes.append(TopologyNote(None, text))
            elif (only_look or not thing.ours) and not await declarer.exists(thing):
                missing.add(thing.name)
                if not only_look:
                    text = "does not exist; it belongs to another application, which must create it"
                    notes.append(TopologyNote(thing.name, text))
            elif thing.ours:
                # Even if an existing queue differs: a policy may say it, which AMQP does not show.
                result.note_overflow(thing.name, thing.arguments.get(_OVERFLOW))
                if different := await declarer.differences(thing):
                    notes.append(TopologyNote(thing.name, f"is used as it is: {_told(different)}"))
                    if _OVERFLOW in different:
                        result.note_overflow(thing.name, different[_OVERFLOW].theirs)
            elif not only_look:
                result.note_overflow(thing.name, await declarer.overflow(thing))
    finally:
        await declarer.close()
    return result


def _told(differences: Mapping[str, ArgumentDifference]) -> str:
    return "; ".join(map(str, differences.values()))


class _Declarer:
    """Declares one object after the other, on a new channel after each refusal."""

    def __init__(self, session: AmqpSession) -> None:
        self._session = session
        self._channel: AmqpChannel | None = None

    async def _open(self) -> AmqpChannel:
        if self._channel is None or not self._channel.is_open:
            self._channel = await AmqpChannel.open(self._session.consuming)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def declare(self, thing: AmqpObject) -> None:
        await (await self._open()).declare(thing)

    async def exists(self, queue: AmqpQueue) -> bool:
        try:
            await (await self._open()).count_ready(queue.name)
        except QueueNotFoundError:
            return False
        return True

    async def overflow(self, queue: AmqpQueue) -> str | int | None:
        """What somebody else's queue does when it is full; None: the default, or not known.

        It is declared with an ``x-overflow`` that does not exist. So nothing is ever created, and
        the broker says how the queue differs.
        """
        asked = replace(queue, arguments={_OVERFLOW: "?"})
        try:
            different = await self.differences(asked, until=_OVERFLOW)
        except NotConnectedError:
            raise
        except MatadorError as error:  # perhaps it may not be configured, or has been deleted
            log.debug("%s: could not find out its %s: %s", queue.name, _OVERFLOW, error)
            return None
        return different[_OVERFLOW].theirs if _OVERFLOW in different else None

    async def differences(
        self, thing: AmqpExchange | AmqpQueue, until: str | None = None
    ) -> dict[str, ArgumentDifference]:
        """Declare it. The broker reports one difference at a time: adopt it and try again.

        ``until``: the argument that ends it.
        """
        found: dict[str, ArgumentDifference] = {}
        while len(found) < _MOST_DIFFERENCES:
            try:
                await self.declare(thing)
                break
            except MatadorError as error:
                difference = _difference(error)
                if difference is None:
                    raise
            name = difference.name
            if name in found:
                break
            found[name] = difference
            if name in _FIXED or name == until:
                break
            arguments = {key: value for key, value in thing.arguments.items() if key != name}
            if difference.theirs is not None:
                arguments[name] = difference.theirs
            thing = replace(thing, arguments=arguments)
        return found


def _difference(error: MatadorError) -> ArgumentDifference | None:
    cause = error.__cause__
    if (
        isinstance(cause, pika_errors.ChannelClosedByBroker)
        and cause.reply_code == PRECONDITION_FAILED
    ):
        return difference_in(str(cause.reply_text))
    return None


def _value(text: str) -> str | int | None:
    found = _VALUE.match(text.strip())
    if found is None:
        return None
    value = found["value"]
    numeric = found["type"] not in (None, "longstr")
    return int(value) if numeric and value.lstrip("-").isdecimal() else value
