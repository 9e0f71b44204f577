"""Which exchange a message goes to, and as what: the work of the topologies that were applied.

A queue of an applied topology is reached through its namespace's exchange, as the format says. Any
other queue is reached directly, through the default exchange, which knows every queue by its name.
"""

from __future__ import annotations

from matador.errors import (
    DelaysNotSupportedError,
    MatadorError,
    QueueNotFoundError,
)
from matador.model.message import REASON_HEADER, DeadLetter, Message, Release, Retry, Settlement
from matador.model.topology import Topology, dead_letter_name
from matador.transports.clock import Clock
from matador.transports.rabbitmq import delays, wire
from matador.transports.rabbitmq.holding import Hold
from matador.transports.rabbitmq.plan import (
    dead_letter_exchange,
    delayed_exchange,
    main_exchange,
)
from matador.transports.rabbitmq.publishing import Parcel
from matador.transports.rabbitmq.url import Address

_LONGEST_NAME = 255
_PLUGIN_MAX = (1 << 32) - 1  # milliseconds


class Routing:
    """Makes parcels of messages and of settlements."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._limit = address.max_message_size
        self._prefix = address.delay_prefix
        self._clock = clock
        self._exchanges: dict[str, str] = {}
        self._dead: dict[str, str] = {}
        self._delayed: dict[str, str] = {}
        self._delays_missing: MatadorError | None = None
        self.frame_max = 131072

    def learn(
        self, topology: Topology, *, plugin: bool, delays_missing: MatadorError | None
    ) -> None:
        """Reach the queues of this topology through its exchanges from now on."""
        namespace = topology.namespace
        self._delays_missing = delays_missing
        for queue in topology.queues:
            name = topology.full_name(queue.name)
            self._exchanges[name] = main_exchange(namespace)
            if topology.dead_letters.enabled_kinds:
                self._dead[name] = dead_letter_exchange(namespace)
            if plugin:
                self._delayed[name] = delayed_exchange(namespace)

    def knows(self, queue: str) -> bool:
        """Is it a work queue of an applied topology?"""
        return queue in self._exchanges

    def parcel(self, message: Message) -> Parcel:
        """A message, ready to be published.

        Raises:
            MatadorError: it cannot be: too large, a delay for a queue that is not known.
        """
        queue = message.queue
        exchange = self._exchanges.get(queue)
        problem = wire.check_size(message, self._limit)
        if problem is not None:
            raise problem
        if message.delay > 0:
            return self._delayed_parcel(message)
        if exchange is None:
            _check_name(queue)
            exchange = ""
        properties = wire.properties_of(message, self._now(), self.frame_max)
        return Parcel(exchange, queue, message.id, properties, message.body)

    def settlement_parcel(self, settlement: Settlement, hold: Hold) -> Parcel:
        """What has to be stored before a delivery is acknowledged."""
        match settlement:
            case Retry():
                return self.parcel(settlement.message)
            case DeadLetter():
                return self._dead_letter(settlement, hold)
            case Release():
                return self.copy(hold, settlement.receipt.queue)
            case _:
                raise AssertionError("a completed delivery has no successor")

    def copy(self, hold: Hold, queue: str) -> Parcel:
        """A delivery as it was before it was delivered, with how often it was in a header."""
        changes: dict[str, str | int] = (
            {wire.DELIVERIES: hold.deliveries} if hold.deliveries else {}
        )
        properties = wire.copied_properties(hold.properties, changes)
        return Parcel("", queue, wire.id_of(properties), properties, hold.body)

    def _dead_letter(self, settlement: DeadLetter, hold: Hold) -> Parcel:
        source = settlement.receipt.queue
        target = dead_letter_name(source, settlement.kind)
        exchange = self._dead.get(source, "")
        message = settlement.message
        if message is None:
            properties = wire.dead_letter_properties(hold.properties, settlement.reason)
            _check_name(target)
            return Parcel(exchange, target, wire.id_of(properties), properties, hold.body)
        letter = Message(
            message.id,
            target,
            message.body,
            {**message.headers, REASON_HEADER: settlement.reason},
            0.0,
            message.priority,
            message.ordering_key,
        )
        properties = wire.properties_of(letter, self._now(), self.frame_max)
        return Parcel(exchange, target, message.id, properties, message.body)

    def _delayed_parcel(self, message: Message) -> Parcel:
        queue = message.queue
        if queue not in self._exchanges:
            raise QueueNotFoundError(
                f"{queue!r} is in no topology that was applied here, so nothing can be delayed "
                f"for it"
            )
        milliseconds = max(1, -int(-message.delay * 1000 // 1))
        plugin = self._delayed.get(queue)
        if plugin is not None and milliseconds <= _PLUGIN_MAX:
            properties = wire.properties_of(
                message, self._now(), self.frame_max, {"x-delay": milliseconds}
            )
            # The plugin stores the message itself: no queue takes it now, so none is demanded.
            return Parcel(plugin, queue, message.id, properties, message.body, False)
        if self._delays_missing is not None:
            raise DelaysNotSupportedError(
                f"the queues for delays could not be made: {self._delays_missing}"
            ) from self._delays_missing
        if message.delay > delays.MAX_DELAY:
            raise DelaysNotSupportedError(
                f"cannot delay for more than {delays.MAX_DELAY:.0f} s, asked were "
                f"{message.delay:g} s"
            )
        levels = delays.path(message.delay)
        properties = wire.properties_of(message, self._now(), self.frame_max, delays.marks(levels))
        exchange = delays.exchange_of(self._prefix, levels[0])
        return Parcel(exchange, queue, message.id, properties, message.body)

    def _now(self) -> int:
        return round(self._clock.time() * 1000)


def _check_name(queue: str) -> None:
    if not queue or len(queue.encode()) > _LONGEST_NAME:
        raise QueueNotFoundError(f"there is no queue {queue[:80]!r}: no name has that length")
