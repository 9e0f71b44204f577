"""A consumer of one queue, which is restored after everything that can happen to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import ConfigurationError, MatadorError, NotConnectedError, QueueNotFoundError
from matador.model.message import Delivery, Release
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.deliveries import ChannelDeliveries, hold_of
from matador.transports.rabbitmq.errors import reason_of, translate

log = logging.getLogger("matador.rabbitmq")

_REST, _LONGEST_REST = 0.08, 0.8  # seconds; a push may wait for the disk of the broker


class RabbitMQSubscription(BaseSubscription):
    """Deliveries of one queue, pushed by the broker, at most ``prefetch`` of them unsettled.

    A lost connection is no error for the receiver: it waits until the transport has restored the
    consumer. If only the consumer or its channel is lost (a deleted queue, a delivery held for too
    long), the next ``receive`` restores it, and the queue too if it is ours. It raises only if
    that fails.
    """

    def __init__(
        self,
        queue: str,
        prefetch: int,
        *,
        connection: Callable[[], AmqpConnection],
        redeclare: Callable[[str], Awaitable[bool]],
        give_back: Callable[[Sequence[Release]], Awaitable[object]],
        count: Callable[[Sequence[Delivery]], Awaitable[Sequence[Delivery]]],
        is_internal: Callable[[bytes], bool],
        closed: Callable[[RabbitMQSubscription], object],
    ) -> None:
        super().__init__(queue)
        self._prefetch = prefetch
        self._connection = connection
        self._redeclare = redeclare
        self._give_back = give_back
        self._count = count
        self._is_internal = is_internal
        self._on_closed = closed
        self._counting: set[asyncio.Task[None]] = set()
        self._holder: ChannelDeliveries | None = None
        self._consumer = ""
        self._extra = 0  # how many more than ``prefetch`` are pushed, by a second consumer
        self._second = ""
        self._broken: BaseException | None = None
        self._paused = False
        self._careful = False  # only one message at a time is pushed
        self._all_was_well = False
        self._changing: asyncio.Task[None] | None = None
        self._given_up: MatadorError | None = None
        self._wakeup = Wakeup()
        self._mending = asyncio.Lock()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        if limit < 1:
            raise ConfigurationError(f"receive: limit must be at least 1, got {limit}")
        while self._active:
            holder = self._holder
            if holder is not None and holder.arrived:
                deliveries = self._next(holder, limit)
                if deliveries:
                    self._all_was_well = True  # unless a pause follows
                    return deliveries
            elif self._given_up is not None:
                raise self._given_up
            elif self._paused or self._may_widen:
                if self._changing is None:
                    self._changing = asyncio.create_task(self._consume_again())
                # Shielded: cancelling the call must not leave half a consumer.
                await asyncio.shield(self._changing)
            elif self._broken is not None:
                await self._mend()
            else:
                await self._wakeup.wait()
        return ()

    def _next(self, holder: ChannelDeliveries, limit: int) -> list[Delivery]:
        arrived = holder.arrived
        if len(arrived) <= limit:
            deliveries = list(arrived)
            arrived.clear()
        else:
            deliveries = [arrived.popleft() for _ in range(limit)]
        uncounted = [one for one in deliveries if hold_of(one.receipt).uncounted]
        if not uncounted:
            return deliveries
        task = asyncio.create_task(self._have_counted(holder, uncounted))
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)
        return [one for one in deliveries if not hold_of(one.receipt).uncounted]

    async def _have_counted(
        self, holder: ChannelDeliveries, deliveries: Sequence[Delivery]
    ) -> None:
        """Classic queues only count to two: a copy with its delivery count arrives instead."""
        for delivery in await self._count(deliveries):  # no copy: better uncounted than never
            hold = hold_of(delivery.receipt)
            hold.uncounted = False
            if hold.alive:
                holder.arrived.append(delivery)
        self._wakeup.wake()

    async def close(self) -> None:
        """Close; what ``receive`` has not returned goes back as copies, uncounted."""
        if not self._active:
            return
        self._active = False
        self._on_closed(self)
        self._wakeup.wake()
        await self._wait_changed()
        holder = self._holder
        # The channel stays open until the last of its deliveries is settled.
        if holder is not None and holder.alive and await self._leave(holder, self._consumer):
            holder.retire()

    async def pause(self) -> None:
        """Pause. The channel stays open for deliveries that are not settled.

        Afterwards the broker pushes one message at a time, until a ``receive`` returns one and no
        pause follows. Otherwise, with a pause for each of many suspects, the broker would count the
        messages that it is just pushing.
        """
        await self._wait_changed()
        self._all_was_well = False
        holder, consumer = self._holder, self._consumer
        if not self._active or holder is None or not consumer:
            return
        if self._careful and holder.unacknowledged == 1 and not holder.arrived:
            return  # nothing else is pushed
        self._paused, self._consumer = True, ""
        await self._leave(holder, consumer)
        self._extra = 0

    async def set_prefetch(self, prefetch: int) -> None:
        """Set the prefetch with a second consumer: the first one keeps its limit."""
        await self._wait_changed()
        previous, self._extra = self._extra, max(0, prefetch - self._prefetch)
        holder = self._holder
        if self._extra == previous or holder is None or not self._consumer:
            return
        try:
            if self._second:
                second, self._second = self._second, ""
                await self._cancel(holder, self._prefetch + previous, second)
            if self._extra and not self._careful:
                self._second = await holder.channel.consume(self.queue, self._extra)
        except MatadorError as error:
            if self._connection_is_open:
                self._broken = error
                self._wakeup.wake()

    async def _cancel(self, holder: ChannelDeliveries, prefetch: int, *consumers: str) -> None:
        """End consumers while no message is on its way to them."""
        holder.restrained = True
        try:
            await self._come_to_rest(holder, prefetch)
            for consumer in consumers:
                await holder.channel.cancel(consumer)
        finally:
            holder.restrained = False
            holder.flush()

    async def _leave(self, holder: ChannelDeliveries, consumer: str) -> bool:
        """End the consumers and return what was not received; False: the connection is lost."""
        second, self._second = self._second, ""
        try:
            if consumer:
                prefetch = 1 if self._careful else self._prefetch + self._extra
                await self._cancel(holder, prefetch, *filter(None, (second, consumer)))
        except MatadorError as error:
            log.debug("%s: the consumer was already gone: %s", self.queue, error)
        if self._counting:
            await asyncio.wait(self._counting)
        unreturned = [Release(delivery.receipt) for delivery in holder.arrived]
        holder.arrived.clear()
        if unreturned:
            try:
                await self._give_back(unreturned)
            except NotConnectedError:
                return False  # the broker delivers them again, counted
        return True

    async def _come_to_rest(self, holder: ChannelDeliveries, prefetch: int) -> None:
        """Wait until no message is on its way: the broker would count it as delivered."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + _LONGEST_REST
        while holder.alive and holder.unacknowledged < prefetch and loop.time() < latest:
            seen = holder.seen
            await asyncio.sleep(_REST)
            if holder.seen == seen:
                return

    @property
    def _may_widen(self) -> bool:
        """Whether the broker may push several messages again: only while none is on its way."""
        holder = self._holder
        return (
            self._careful
            and self._all_was_well
            and bool(self._consumer)
            and holder is not None
            and holder.alive
            and holder.unacknowledged == 1
        )

    async def _consume_again(self) -> None:
        """Consume carefully after a pause, or as before if all is well. Raises nothing."""
        holder, consumer = self._holder, self._consumer
        try:
            if holder is not None and holder.alive:
                if self._paused:
                    self._careful, self._all_was_well = self._prefetch > 1, False
                else:
                    self._careful, self._consumer = False, ""
                    await holder.channel.cancel(consumer)
                prefetch = 1 if self._paused else self._prefetch
                self._consumer = await holder.channel.consume(self.queue, prefetch)
            elif self._connection_is_open:
                self._broken = RuntimeError("its channel was closed during a pause")
        except MatadorError as error:
            if self._connection_is_open:
                self._broken = error  # the receiver mends it
        finally:
            self._paused, self._changing = False, None

    @property
    def _connection_is_open(self) -> bool:
        """Whether the connection is open; if not, the transport restores the consumer with it."""
        try:
            return self._connection().is_open
        except NotConnectedError:
            return False

    async def _wait_changed(self) -> None:
        if self._changing is not None:
            await asyncio.wait([self._changing])

    # -- starting and restoring -------------------------------------------------------------------

    async def start(self, connection: AmqpConnection) -> None:
        """Consume on a new channel.

        Raises:
            QueueNotFoundError: there is no such queue.
            TransportError: the connection is lost again.
        """
        holder = await ChannelDeliveries.open(connection, self.queue, self._is_internal)
        holder.on_delivery = self._wakeup.wake
        channel = holder.channel
        channel.on_closed = lambda reason: self._lost(holder, reason)
        channel.on_cancel = lambda: self._cancelled(holder)
        try:
            self._consumer = await channel.consume(self.queue, self._prefetch)
            if self._extra:
                self._second = await channel.consume(self.queue, self._extra)
        except BaseException:
            channel.on_closed = lambda _: None
            await channel.close()
            raise
        if not self._active:
            await channel.close()
            return
        self._holder, self._broken, self._paused, self._careful = holder, None, False, False

    async def restore(self, connection: AmqpConnection) -> None:
        """Consume again on a new connection; the receiver gets the error if that fails."""
        try:
            await self.start(connection)
        except QueueNotFoundError as error:
            self._broken = error
        self._wakeup.wake()

    def give_up(self, error: MatadorError | None) -> None:
        """Have ``receive`` raise this: the transport no longer reconnects. None: it is back."""
        self._given_up = error
        if error is not None:
            self._wakeup.wake()

    async def _mend(self) -> None:
        """Restore a consumer that was lost alone, and the queue too if a topology has it."""
        async with self._mending:
            reason = self._broken
            if reason is None:
                return
            try:
                ours = await self._redeclare(self.queue)
                await self.start(self._connection())
            except NotConnectedError as error:
                self._broken = None  # the transport restores us with the connection
                log.debug("%s: waiting for the connection: %s", self.queue, error)
                return
            log.warning(
                "%s: consuming again after the broker ended the consumer (%s)%s",
                self.queue,
                reason_of(reason),
                "; the queue was created again if it was missing" if ours else "",
            )

    def _cancelled(self, holder: ChannelDeliveries) -> None:
        if self._active and holder is self._holder:
            self._broken = RuntimeError("the broker cancelled the consumer: its queue was deleted")
            self._consumer = self._second = ""
            while holder.arrived:
                holder.requeue(hold_of(holder.arrived.popleft().receipt))
            holder.retire()
            self._wakeup.wake()

    def _lost(self, holder: ChannelDeliveries, reason: BaseException) -> None:
        holder.forget()
        if self._active and holder is self._holder and self._consumer:
            self._holder, self._consumer, self._second = None, "", ""
            if holder.channel.connection.is_open:
                self._broken = translate(reason, f"consuming {self.queue}")
                self._wakeup.wake()
