"""A consumer of one queue, which comes back after everything that can happen to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from matador.errors import ConfigurationError, MatadorError, NotConnectedError, QueueNotFoundError
from matador.model.message import Delivery, Release
from matador.transports.kit.transport import BaseSubscription
from matador.transports.kit.wakeup import Wakeup
from matador.transports.rabbitmq.channel import AmqpChannel
from matador.transports.rabbitmq.connection import AmqpConnection
from matador.transports.rabbitmq.deliveries import AmqpHold, ChannelDeliveries
from matador.transports.rabbitmq.errors import reason_of, translate

log = logging.getLogger("matador.rabbitmq")

_REST, _LONGEST_REST = 0.03, 0.3  # seconds


class RabbitMQSubscription(BaseSubscription):
    """Deliveries of one queue, pushed by the broker, at most ``prefetch`` of them unsettled.

    A lost connection is no error to the receiver: it waits until the transport has restored the
    consumer. A consumer that is cancelled, or whose channel is closed, while the connection lives
    (a deleted queue, a delivery held for too long) is made again by the next ``receive``, the
    queue too if it is ours; only if that fails does it raise.
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
        closed: Callable[[RabbitMQSubscription], object],
    ) -> None:
        super().__init__(queue)
        self._prefetch = prefetch
        self._connection = connection
        self._redeclare = redeclare
        self._give_back = give_back
        self._count = count
        self._counting: set[asyncio.Task[None]] = set()
        self._on_closed = closed
        self._holder: ChannelDeliveries | None = None
        self._consumer = ""
        self._extra = 0  # how much more than ``prefetch`` is pushed, by a second consumer
        self._second = ""
        self._broken: BaseException | None = None
        self._paused = False
        self._careful = False
        self._all_was_well = False
        self._resuming: asyncio.Task[None] | None = None
        self._given_up: MatadorError | None = None
        self._wakeup = Wakeup()
        self._mending = asyncio.Lock()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """See ``Subscription``."""
        if limit < 1:
            raise ConfigurationError(f"receive: limit must be at least 1, got {limit}")
        while self._active:
            holder = self._holder
            if holder is not None and holder.arrived:
                deliveries = self._next(holder, limit)
                if deliveries:
                    self._all_was_well = True  # unless a pause follows
                    return deliveries
                continue
            if self._given_up is not None:
                raise self._given_up
            if self._paused or self._may_widen:
                if self._resuming is None:
                    change = self._resume() if self._paused else self._widen()
                    self._resuming = asyncio.create_task(change)
                await asyncio.shield(self._resuming)  # who stops waiting leaves no half a consumer
                continue
            if self._broken is not None:
                await self._mend()
                continue
            await self._wakeup.wait()
        return ()

    def _next(self, holder: ChannelDeliveries, limit: int) -> list[Delivery]:
        arrived = holder.arrived
        if len(arrived) <= limit:
            deliveries = list(arrived)
            arrived.clear()
        else:
            deliveries = [arrived.popleft() for _ in range(limit)]
        uncounted = [one for one in deliveries if _is_uncounted(one)]
        if not uncounted:
            return deliveries
        task = asyncio.create_task(self._have_counted(holder, uncounted))
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)
        return [one for one in deliveries if not _is_uncounted(one)]

    async def _have_counted(
        self, holder: ChannelDeliveries, deliveries: Sequence[Delivery]
    ) -> None:
        """Classic queues count to two: a copy that says how often comes instead."""
        for delivery in await self._count(deliveries):  # as they are, rather than never
            hold = delivery.receipt.handle
            assert isinstance(hold, AmqpHold)
            hold.uncounted = False
            if hold.alive:
                holder.arrived.append(delivery)
        self._wakeup.wake()

    async def close(self) -> None:
        """See ``Subscription``. What was not returned is given back as copies, uncounted."""
        if not self._active:
            return
        self._active = False
        self._on_closed(self)
        self._wakeup.wake()
        await self._wait_resumed()
        holder = self._holder
        if holder is None or holder.channel is None or not holder.alive:
            return
        # The channel lives until the last delivery that came through it is settled.
        if await self._leave(holder, holder.channel, self._consumer):
            retire(holder)

    async def pause(self) -> None:
        """See ``Pausing``. The channel stays, for what is to be settled.

        Afterwards one message at a time is pushed, until a ``receive`` shows that one was taken up
        without a pause: a pause for each of many suspects would have the broker count those it was
        just pushing.
        """
        await self._wait_resumed()
        self._all_was_well = False
        holder, consumer = self._holder, self._consumer
        if not self._active or holder is None or holder.channel is None or not consumer:
            return
        if self._careful and holder.unacknowledged == 1 and not holder.arrived:
            return  # nothing is pushed beside it
        self._paused, self._consumer = True, ""
        await self._leave(holder, holder.channel, consumer)
        self._extra = 0

    async def set_prefetch(self, prefetch: int) -> None:
        """See ``Prefetching``. A second consumer has the rest pushed: the first keeps its limit."""
        await self._wait_resumed()
        extra = max(0, prefetch - self._prefetch)
        holder = self._holder
        if extra == self._extra or holder is None or holder.channel is None or not self._consumer:
            self._extra = extra
            return
        try:
            try:
                if self._second:
                    second, self._second = self._second, ""
                    await self._cancel(holder, holder.channel, second)
            finally:
                self._extra = extra
            if extra and not self._careful:
                await self._consume_more(holder.channel)
        except MatadorError as error:
            if self._connection_is_open:
                self._broken = error
                self._wakeup.wake()

    async def _consume_more(self, channel: AmqpChannel) -> None:
        await channel.limit(self._extra)
        self._second = await channel.consume(self.queue)

    async def _cancel(
        self, holder: ChannelDeliveries, channel: AmqpChannel, *consumers: str
    ) -> None:
        """End consumers while nothing is on its way to them."""
        holder.restrained = True
        try:
            await self._come_to_rest(holder)
            for consumer in consumers:
                await channel.cancel(consumer)
        finally:
            holder.restrained = False
            holder.flush()

    async def _leave(self, holder: ChannelDeliveries, channel: AmqpChannel, consumer: str) -> bool:
        """Have nothing more pushed, and give back what was returned to nobody; False: lost."""
        second, self._second = self._second, ""
        try:
            if consumer:
                await self._cancel(holder, channel, *filter(None, (second, consumer)))
        except MatadorError as error:
            log.debug("%s: the consumer was gone already: %s", self.queue, error)
        if self._counting:
            await asyncio.wait(self._counting)
        unreturned = [Release(delivery.receipt) for delivery in holder.arrived]
        holder.arrived.clear()
        if unreturned:
            try:
                await self._give_back(unreturned)
            except NotConnectedError:
                return False  # the broker gives them back itself, counted
        return True

    async def _come_to_rest(self, holder: ChannelDeliveries) -> None:
        """Wait until nothing is on its way: the broker counts what meets no consumer."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + _LONGEST_REST
        prefetch = 1 if self._careful else self._prefetch + self._extra
        while holder.alive and holder.unacknowledged < prefetch and loop.time() < latest:
            seen = holder.seen
            await asyncio.sleep(_REST)
            if holder.seen == seen:
                return

    @property
    def _may_widen(self) -> bool:
        """Can more be pushed again? Only while one is held, so that nothing is on its way."""
        holder = self._holder
        return (
            self._careful
            and self._all_was_well
            and bool(self._consumer)
            and holder is not None
            and holder.alive
            and holder.unacknowledged == 1
        )

    async def _widen(self) -> None:
        """Have as much pushed as before a pause. Raises nothing: the receiver mends it."""
        holder, consumer = self._holder, self._consumer
        assert holder is not None
        assert holder.channel is not None
        self._careful, self._consumer = False, ""
        try:
            await holder.channel.cancel(consumer)
            await holder.channel.limit(self._prefetch)
            self._consumer = await holder.channel.consume(self.queue)
        except MatadorError as error:
            if self._connection_is_open:
                self._broken = error
        finally:
            self._resuming = None

    async def _resume(self) -> None:
        """Have messages pushed again after a pause. Raises nothing: the receiver mends it."""
        holder = self._holder
        try:
            if holder is not None and holder.channel is not None and holder.alive:
                self._careful, self._all_was_well = self._prefetch > 1, False
                await holder.channel.limit(1)
                self._consumer = await holder.channel.consume(self.queue)
            elif self._connection_is_open:
                self._broken = RuntimeError("its channel was closed during a pause")
        except NotConnectedError as error:
            # The whole connection is gone: the transport restores us with it.
            log.debug("%s: waiting for the connection: %s", self.queue, error)
        except MatadorError as error:
            self._broken = error
        finally:
            self._paused, self._resuming = False, None

    @property
    def _connection_is_open(self) -> bool:
        try:
            return self._connection().is_open
        except NotConnectedError:
            return False  # the transport restores us with it

    async def _wait_resumed(self) -> None:
        if self._resuming is not None:
            await asyncio.wait([self._resuming])

    # -- coming and going -------------------------------------------------------------------------

    async def start(self) -> None:
        """Consume on a new channel of the present connection.

        Raises:
            QueueNotFoundError: there is no such queue.
            TransportError: the connection is lost again.
        """
        holder = ChannelDeliveries(self.queue)
        holder.on_delivery = self._wakeup.wake
        channel = await self._connection().channel(holder)
        holder.channel = channel
        channel.on_closed = lambda reason: self._lost(holder, reason)
        channel.on_cancel = lambda: self._cancelled(holder)
        try:
            await channel.limit(self._prefetch)
            self._consumer = await channel.consume(self.queue)
            if self._extra:
                await self._consume_more(channel)
        except BaseException:
            channel.on_closed = lambda _: None
            await channel.close()
            raise
        if not self._active:
            await channel.close()
            return
        self._holder, self._broken, self._paused, self._careful = holder, None, False, False

    async def restore(self) -> None:
        """Consume again on a new connection; a failure is for the receiver to see."""
        try:
            await self.start()
        except QueueNotFoundError as error:
            self._broken = error
        self._wakeup.wake()

    def give_up(self, error: MatadorError) -> None:
        """The transport will not connect again: the receiver is told."""
        self._given_up = error
        self._wakeup.wake()

    def go_on(self) -> None:
        """The transport was connected again after it had given up."""
        self._given_up = None

    async def _mend(self) -> None:
        """Make the consumer again after it alone was lost; the queue too if it is ours."""
        async with self._mending:
            reason = self._broken
            if reason is None:
                return
            try:
                made = await self._redeclare(self.queue)
                await self.start()
            except NotConnectedError as error:
                # The whole connection is gone: the transport restores us with it.
                self._broken = None
                log.debug("%s: waiting for the connection: %s", self.queue, error)
                return
            log.warning(
                "%s: consuming again after the broker ended the consumer (%s)%s",
                self.queue,
                reason_of(reason),
                "; the queue was created again if it was missing" if made else "",
            )

    def _cancelled(self, holder: ChannelDeliveries) -> None:
        if self._active and holder is self._holder:
            self._broken = RuntimeError("the broker cancelled the consumer: its queue was deleted")
            self._consumer = self._second = ""
            holder.requeue_arrived()
            retire(holder)
            self._wakeup.wake()

    def _lost(self, holder: ChannelDeliveries, reason: BaseException) -> None:
        holder.forget()
        if self._active and holder is self._holder and self._consumer:
            self._holder, self._consumer, self._second = None, "", ""
            channel = holder.channel
            if channel is not None and channel.connection.is_open:
                self._broken = translate(reason, f"consuming {self.queue}")
                self._wakeup.wake()


def _is_uncounted(delivery: Delivery) -> bool:
    hold = delivery.receipt.handle
    return isinstance(hold, AmqpHold) and hold.uncounted


def retire(holder: ChannelDeliveries) -> None:
    """Close a holder's channel as soon as nothing that came through it is unsettled."""

    def close() -> None:
        holder.on_empty = lambda: None
        if holder.channel is not None:
            holder.channel.close_soon()

    holder.on_empty = close
    holder.flush()
    if holder.held == 0:
        close()
