"""Consumes one queue with a share group, for all subscriptions of this process.

The broker counts what it hands out, whether a handler has begun with it or not, and drops a message
that it has handed out too often. So what goes back unhandled goes back as a copy at the end of the
topic, with the right count, and a message that came back by itself is copied, too, before the
broker gives up on it: alone, because one of those that were read together may have been deadly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from matador.errors import MatadorError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.delays import BrokerClock, delayed
from matador.transports.kafka.share_groups import ShareLimits
from matador.transports.kafka.share_holds import Acknowledgement, ShareHold
from matador.transports.kafka.share_member import ShareMember
from matador.transports.kafka.store import KafkaStore
from matador.transports.kafka.wire import Record, put_back
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.wakeup import Waiters, Wakeup

_LOG = logging.getLogger(__name__)
_LOOKS = 10  # a lock
_CLOSING = 5.0  # seconds
_FIRST_MEMBERS = 4


class ShareQueue:
    """Some members of the share group of a queue. All of it belongs to the event loop."""

    def __init__(
        self,
        client: KafkaClient,
        store: KafkaStore,
        queue: str,
        topic: str,
        group: str,
        limits: ShareLimits,
        closed: Callable[[ShareQueue], None],
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.waiters = Waiters()
        self._client = client
        self._store = store
        self._group = group
        self._limits = limits
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[Wakeup, int] = {}
        self._members: set[ShareMember] = set()
        self._ready: deque[ShareHold] = deque()
        self._held: set[ShareHold] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem: MatadorError | None = None
        self._paused = False
        self._troubled = False
        self._stopping = False
        self._forced = False
        self._retired = False
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        self._spawn(self._watch())

    # -- receivers ---------------------------------------------------------------------------------

    def join(self, receiver: Wakeup, prefetch: int) -> None:
        """One more wants messages, at most ``prefetch`` of them in advance."""
        self._receivers[receiver] = max(1, prefetch)
        try:
            for _ in range(min(_FIRST_MEMBERS, self._places) - len(self._members)):
                self._grow()
        except MatadorError:
            self._receivers.pop(receiver)
            self._stop(forced=True)
            raise

    async def part(self, receiver: Wakeup) -> None:
        """It wants no more. Without receivers and deliveries, the group is left."""
        self._receivers.pop(receiver, None)
        receiver.wake()
        self.waiters.wake()
        if not self._receivers:
            self._retire()
            for member in self._members:
                member.stop(forced=False)
            await self.hold_nothing()
        self._leave_if_idle()
        if self._stopping:
            await asyncio.shield(self.stopped)

    async def receive(self, receiver: Wakeup, limit: int) -> list[ShareHold]:
        """Up to ``limit`` messages; none if there are none at the moment.

        Raises:
            TransportError: the topic cannot be read.
            ConfigurationError: the broker has no share groups.
        """
        if receiver not in self._receivers:
            self.waiters.wake()
            return []
        if self._paused:
            self._pause(False)
        if (problem := self._problem) is not None:
            self._problem = None
            raise problem
        taken: list[ShareHold] = []
        while self._ready and len(taken) < limit:
            hold = self._ready.popleft()
            if hold.is_ours:
                taken.append(hold)
        return taken

    def read_ahead(self, messages: int) -> None:
        """Nothing to do: the broker counts what it hands out."""

    async def hold_nothing(self) -> None:
        """Give back what was not received, uncounted, and read nothing until the next call of
        ``receive``, unless there are others who want it."""
        self._pause(len(self._receivers) < 2)
        ready, self._ready = list(self._ready), deque()
        await self.give_back(ready)

    def is_joined(self, receiver: Wakeup) -> bool:
        """Whether it gets messages: not once it has parted, or all has ended."""
        return receiver in self._receivers

    @property
    def has_news(self) -> bool:
        """Whether ``receive`` would return something, or raise."""
        return len(self._ready) > 0 or self._problem is not None

    async def close(self) -> None:
        """Leave the group at once; what is in hand is redelivered to others."""
        self._stop(forced=True)
        await asyncio.shield(self.stopped)

    # -- settlements -------------------------------------------------------------------------------

    async def give_back(self, holds: Sequence[ShareHold], *, alone: bool = False) -> None:
        """Put copies at the end of the topic that count this delivery as none, and be done with
        the originals. What cannot be copied is received as it is, or comes back counted."""
        ours = [hold for hold in holds if hold.is_ours]
        for hold in ours:
            hold.settled = True
        copies = [put_back(hold.record, hold.count - 1) for hold in ours]
        if alone:
            for hold, copy in zip(ours, copies, strict=True):
                await self._replace([hold], [copy])
        else:
            await self._replace(ours, copies)

    async def _replace(self, holds: Sequence[ShareHold], records: Sequence[Record]) -> None:
        try:
            reports = await self._store.put(records)
        except MatadorError as error:  # not connected
            reports = [error for _ in records]
        stored: list[ShareHold] = []
        failed: list[ShareHold] = []
        for hold, report in zip(holds, reports, strict=True):
            (failed if isinstance(report, MatadorError) else stored).append(hold)
        await self.acknowledge(stored, Acknowledgement.ACCEPT)
        if any(isinstance(one, MatadorError) for one in reports):
            self._stop_reading()
        if self._wants_none:
            await self.acknowledge(failed, Acknowledgement.RELEASE)
            return
        for hold in failed:
            hold.settled = False
        self._ready.extend(failed)
        self.waiters.wake(len(failed))

    def _stop_reading(self) -> None:
        """While nothing can be stored, nothing is read: it would be counted, and dropped in the end
        by the broker."""
        if not self._troubled:
            self._troubled = True
            self._pause(self._paused)
            self._spawn(self._read_again())

    async def _read_again(self) -> None:
        backoff = Backoff(0.2, 5.0)
        while True:
            await backoff.sleep()
            try:
                (report,) = await self._store.put([BrokerClock.question(self.topic)])
            except MatadorError:
                continue
            if not isinstance(report, MatadorError):
                break
        self._troubled = False
        self._pause(self._paused)

    async def acknowledge(
        self, holds: Sequence[ShareHold], how: Acknowledgement
    ) -> list[MatadorError | None]:
        """For each None once the broker knows it, or why it does not. They are done with then."""
        members: dict[Any, list[ShareHold]] = {}
        for hold in holds:
            members.setdefault(hold.lender, []).append(hold)
        outcomes: dict[int, MatadorError | None] = {}
        answers = await asyncio.gather(
            *[member.acknowledge(part, how) for member, part in members.items()]
        )
        for part, answer in zip(members.values(), answers, strict=True):
            outcomes |= {id(hold): outcome for hold, outcome in zip(part, answer, strict=True)}
        self._held.difference_update(holds)
        self._leave_if_idle()
        return [outcomes[id(hold)] for hold in holds]

    # -- what arrives ------------------------------------------------------------------------------

    def arrived(self, holds: list[ShareHold]) -> None:
        """See ``ShareOwner``."""
        self._held |= set(holds)
        if any(map(self._is_special, holds)):
            self._spawn(self._sort(holds))
        else:
            self._offer(holds)
        self._grow_if_needed()

    def failed(self, error: MatadorError) -> None:
        """See ``ShareOwner``."""
        self._problem = error
        self.waiters.wake()

    def ended(self, member: ShareMember) -> None:
        """See ``ShareOwner``."""
        self._members.discard(member)
        self._held = {hold for hold in self._held if hold.lender is not member}
        if self._members:
            if self._forced:
                self._leave_at_once()
            return
        self._stop(forced=True)
        for task in self._tasks:
            task.cancel()
        for receiver in list(self._receivers):
            receiver.wake()
        self._receivers.clear()
        if not self.stopped.done():
            self.stopped.set_result(None)

    @property
    def _wants_none(self) -> bool:
        """Whether nobody is going to receive what arrives."""
        return self._paused or not self._receivers

    def _offer(self, holds: Sequence[ShareHold]) -> None:
        if self._wants_none:
            self._spawn(self.give_back(holds))
            return
        self._ready.extend(holds)
        self.waiters.wake(len(holds))

    def _is_special(self, hold: ShareHold) -> bool:
        return hold.times > 1 or hold.content.delay > 0

    async def _sort(self, holds: Sequence[ShareHold]) -> None:
        """Before anything of a batch is handled: what came back is copied, what is not due waits.

        A single message that came back is handled as it is, while the broker is going to deliver
        it several times more.
        """
        now = time.time()
        late = [hold for hold in holds if hold.content.delay > _age(hold, now)]
        rest = [hold for hold in holds if hold not in late]
        bound = 2 if len(holds) > 1 else max(2, self._limits.deliveries // 2)
        suspects = [hold for hold in rest if hold.times >= bound]
        await self._delay(late, now)
        await self.give_back(suspects, alone=True)
        self._offer([hold for hold in rest if hold.times < bound])

    async def _delay(self, holds: Sequence[ShareHold], now: float) -> None:
        """They were sent by somebody who keeps delayed messages in their place."""
        for hold in holds:
            hold.settled = True
        left = [hold.content.delay - _age(hold, now) for hold in holds]
        await self._replace(
            holds, [delayed(hold.record, wait) for hold, wait in zip(holds, left, strict=True)]
        )

    # -- members -----------------------------------------------------------------------------------

    @property
    def _places(self) -> int:
        """How many messages the receivers can have in hand, and members there may be."""
        return sum(self._receivers.values())

    def _grow_if_needed(self) -> None:
        """A member with something in hand reads nothing more: have another one while there is room.

        One at a time; it takes a while to join.
        """
        busy = {hold.lender for hold in self._held}
        limit = min(self._client.address.members, self._places)
        if len(self._held) < self._places and len(busy) >= len(self._members) < limit:
            self._grow()

    def _grow(self) -> None:
        if len(self._members) >= self._client.address.members:
            return
        member = ShareMember(
            self._client,
            self.queue,
            self.topic,
            self._group,
            self,
            most=-(-self._places // _FIRST_MEMBERS),
            lock=self._limits.lock,
        )
        self._members.add(member)
        member.start()

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for member in self._members:
            member.pause(paused or self._troubled)

    async def _watch(self) -> None:
        """Give back what has waited for too long, and give up what was not settled in time."""
        while True:
            await asyncio.sleep(self._limits.lock / _LOOKS)
            now = time.monotonic()
            stale = [hold for hold in self._ready if hold.fresh_until < now]
            if stale:
                self._ready = deque(hold for hold in self._ready if hold not in stale)
                self._spawn(self.give_back(stale))
            if over := [hold for hold in self._held if hold.deadline <= now]:
                self._spawn(self._give_up(over))

    async def _give_up(self, holds: Sequence[ShareHold]) -> None:
        """The member reads on; the broker gives them to somebody else."""
        await self.acknowledge(holds, Acknowledgement.RELEASE)

    def _leave_if_idle(self) -> None:
        if not self._receivers and not self._held:
            self._stop(forced=False)

    def _stop(self, *, forced: bool) -> None:
        if not self._stopping:
            self._stopping = True
            self._loop.call_later(_CLOSING, self._abandon)
        self._retire()
        self._forced = self._forced or forced
        if self._forced:
            self._leave_at_once()
        else:
            for member in self._members:
                member.stop(forced=False)
        if not self._members and not self.stopped.done():
            self.stopped.set_result(None)

    def _leave_at_once(self) -> None:
        """Members that hold nothing leave first, and the others after them: a member that waits for
        messages would get what another one gives back by leaving, and the broker would count it."""
        busy = {hold.lender for hold in self._held}
        idle = [member for member in self._members if member not in busy]
        for member in idle or self._members:
            member.stop(forced=True)

    def _abandon(self) -> None:
        """librdkafka 2.16 does not always come back from closing a member that was just joining.

        Its thread is left alone; the broker gives what it held to others when the lock ends.
        """
        for member in list(self._members):
            member.stop(forced=True)
            _LOG.warning("a member of %s has not left its group in time", self._group)
            self.ended(member)

    def _retire(self) -> None:
        """Be joined by nobody any more."""
        if not self._retired:
            self._retired = True
            self._closed(self)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _age(hold: ShareHold, now: float) -> float:
    """For how many seconds it has been stored."""
    return now - hold.stored_at
