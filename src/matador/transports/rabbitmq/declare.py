"""Declares the objects of a topology, and reports those that exist with other arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pika import exceptions as pika_errors

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.errors import PRECONDITION_FAILED
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import AmqpBinding, AmqpExchange, AmqpObject, AmqpQueue

_MOST_DIFFERENCES = 20
# The broker compares these first and stops there. We cannot adopt them, either.
_FIXED = frozenset({"type", "durable", "exclusive", "auto_delete"})
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


def difference_in(text: str) -> ArgumentDifference | None:
    """The difference that the broker reports, if it reports one."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return ArgumentDifference(found["name"], _value(found["ours"]), _value(found["theirs"]))


async def declare(
    session: AmqpSession, plan: Iterable[AmqpObject], *, only_look: bool = False
) -> list[TopologyNote]:
    """Create what is missing, or only compare the queues that exist. Returns the differences.

    Raises:
        TransportError: the broker refuses for another reason, or the connection is lost.
    """
    declarer = _Declarer(session)
    notes: list[TopologyNote] = []
    missing: set[str] = set()
    try:
        for thing in plan:
            if isinstance(thing, AmqpBinding):
                if not only_look and thing.queue not in missing:
                    await declarer.declare(thing)
            elif isinstance(thing, AmqpExchange):
                if not only_look and (different := await declarer.differences(thing)):
                    text = f"exchange {thing.name} is used as it is: {different}"
                    notes.append(TopologyNote(None, text))
            elif (only_look or not thing.ours) and not await declarer.exists(thing):
                missing.add(thing.name)
                if not only_look:
                    text = "does not exist; it belongs to another application, which must create it"
                    notes.append(TopologyNote(thing.name, text))
            elif thing.ours and (different := await declarer.differences(thing)):
                notes.append(TopologyNote(thing.name, f"is used as it is: {different}"))
    finally:
        await declarer.close()
    return notes


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

    async def differences(self, thing: AmqpExchange | AmqpQueue) -> str:
        """Declare it. The broker reports one difference at a time: adopt it and try again."""
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
            if name in _FIXED:
                break
            arguments = {key: value for key, value in thing.arguments.items() if key != name}
            if difference.theirs is not None:
                arguments[name] = difference.theirs
            thing = replace(thing, arguments=arguments)
        return "; ".join(map(str, found.values()))


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
