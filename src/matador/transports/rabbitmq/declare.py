"""Makes what a topology needs, and says what was there already in another shape."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pika import exceptions as pika_errors

from matador.errors import ConnectionFailedError, MatadorError, QueueNotFoundError
from matador.model.message import TopologyNote
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.errors import PRECONDITION_FAILED
from matador.transports.rabbitmq.options import RabbitMQAddress
from matador.transports.rabbitmq.session import AmqpSession
from matador.transports.rabbitmq.topology import (
    AmqpBinding,
    AmqpExchange,
    AmqpQueue,
    Arguments,
    TopologyPlan,
)

log = logging.getLogger("matador.rabbitmq")

_MOST_DIFFERENCES = 20
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for \w+ .*?: "
    r"received (?P<ours>none|.*?) but current is (?P<theirs>.*)$",
    re.DOTALL,
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$")


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """An argument that is not as we would have it; None: not given."""

    name: str
    ours: str | int | None
    theirs: str | int | None

    def __str__(self) -> str:
        return f"{self.name} is {_shown(self.theirs)}, ours would be {_shown(self.ours)}"


def difference_in(text: str) -> ArgumentDifference | None:
    """What the broker says is different, if that is what it says."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return ArgumentDifference(found["name"], _value(found["ours"]), _value(found["theirs"]))


async def declare(
    session: AmqpSession, plan: TopologyPlan, *, only_look: bool = False
) -> list[TopologyNote]:
    """Make all of a plan, or only compare it with what is there. What differs is noted.

    Raises:
        TransportError: the broker refuses for another reason, or is gone.
    """
    declarer = _Declarer(session)
    try:
        if not only_look:
            for exchange in plan.exchanges:
                await declarer.exchange(exchange)
        missing: set[str] = set()
        for queue in plan.queues:
            if not await declarer.queue(queue, only_look=only_look):
                missing.add(queue.name)
        if not only_look:
            for binding in plan.bindings:
                if binding.queue not in missing:
                    await (await declarer.channel()).bind(binding)
    finally:
        await declarer.close()
    return declarer.notes


async def declare_at_once(
    session: AmqpSession, things: Iterable[AmqpExchange | AmqpQueue | AmqpBinding]
) -> None:
    """Make many things in one round trip.

    Raises:
        TransportError: one of them is there in another shape, or may not be made.
    """
    channel = await session.channel()
    try:
        last: AmqpQueue | None = None
        for thing in things:
            channel.declare_unheard(thing)
            last = thing if isinstance(thing, AmqpQueue) else last
        if last is not None:
            await channel.declare_queue(last, passive=True)
    finally:
        await channel.close()


async def has_delayed_exchange(address: RabbitMQAddress, session: AmqpSession, name: str) -> bool:
    """Make an exchange of the delayed-message plugin: is the plugin there?

    On a connection of its own, as RabbitMQ closes the whole of it if there is no plugin.
    """
    host, port = session.publishing.host, session.publishing.port
    try:
        connection = await AmqpConnection.open(address, host, port, "looking for a plugin")
    except ConnectionFailedError:
        return False
    try:
        channel = await connection.channel()
        await channel.declare_exchange(
            AmqpExchange(name, "x-delayed-message", {"x-delayed-type": "direct"})
        )
    except MatadorError as error:
        log.debug("no delayed-message plugin: %s", error)
        return False
    finally:
        await connection.close()
    return True


class _Declarer:
    """Declares one thing after the other, with a new channel after each refusal."""

    def __init__(self, session: AmqpSession) -> None:
        self._session = session
        self._channel: AmqpChannel | None = None
        self.notes: list[TopologyNote] = []

    async def channel(self) -> AmqpChannel:
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._session.channel()
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def exchange(self, exchange: AmqpExchange) -> None:
        try:
            await (await self.channel()).declare_exchange(exchange)
        except MatadorError as error:
            difference = _difference(error)
            if difference is None:
                raise
            self.notes.append(
                TopologyNote(
                    None,
                    f"exchange {exchange.name} is used as it is: {difference}",
                )
            )

    async def queue(self, queue: AmqpQueue, *, only_look: bool) -> bool:
        """Make a queue, or look at it; False if it is not there."""
        if only_look or not queue.made:
            try:
                await (await self.channel()).declare_queue(queue, passive=True)
            except QueueNotFoundError:
                if not only_look:
                    text = "does not exist; it belongs to another application, which must create it"
                    self.notes.append(TopologyNote(queue.name, text))
                return False
            if not queue.made:
                return True
        differences = await self._differences(queue)
        if differences:
            listed = "; ".join(map(str, differences))
            self.notes.append(TopologyNote(queue.name, f"is used as it is: {listed}"))
        return True

    async def _differences(self, queue: AmqpQueue) -> list[ArgumentDifference]:
        """Declare it; where it is another, find out in what, one argument at a time."""
        found: list[ArgumentDifference] = []
        while True:
            try:
                await (await self.channel()).declare_queue(queue)
            except MatadorError as error:
                difference = _difference(error)
                if difference is None:
                    raise
                found.append(difference)
                known = {one.name for one in found}
                if len(known) < len(found) or len(found) > _MOST_DIFFERENCES:
                    return found[:-1]
                if difference.name in ("durable", "exclusive", "auto_delete"):
                    return found  # the broker looks no further, and these cannot be followed
                queue = replace(queue, arguments=_followed(queue.arguments, difference))
            else:
                return found


def _followed(arguments: Arguments, difference: ArgumentDifference) -> Arguments:
    """The arguments with theirs in place of ours, to see what else is different."""
    followed = {name: value for name, value in arguments.items() if name != difference.name}
    if difference.theirs is not None:
        followed[difference.name] = difference.theirs
    return followed


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


def _shown(value: str | int | None) -> str:
    return "not set" if value is None else repr(value)
