"""What was read from Kafka and can be received.

A delivery is counted, durably, before it is received: a message that kills its worker must be known
as one. That takes a commit. While messages are handled quickly, those that come next are counted
beside them, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from matador.errors import LeaseLostError, MatadorError
from matador.transports.kafka.commits import Commits, Outcome
from matador.transports.kafka.deliveries import Hold, Partition
from matador.transports.kit.wakeup import Waiters

_LONGEST_WAIT = 1.0  # seconds for which what is counted waits for its receiver
_MANY = 8

_Commits: TypeAlias = list[asyncio.Future[Outcome]]


class Shelf:
    """The messages of one member of a group, in the order in which they are received.

    Attributes:
        ahead: how many may be counted before they are asked for.
        waiters: those who wait for messages.
    """

    def __init__(self, commits: Commits, changed: Callable[[], None]) -> None:
        self._commits = commits
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Hold] = deque()
        self._counted: deque[Hold] = deque()
        self._counting: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[bool]] = []
        self._watched = False
        self._taken_at = 0.0
        self._taken = 0
        self.ahead = 0
        self.waiters = Waiters()

    @property
    def is_busy(self) -> bool:
        """Whether many are handled while others are being counted."""
        return self.ahead > 0 and self._taken >= _MANY

    @property
    def uncounted(self) -> int:
        """How many are not counted yet."""
        return len(self._ready)

    def __len__(self) -> int:
        return len(self._ready) + len(self._counted)

    def add(self, holds: Sequence[Hold]) -> None:
        """These come last."""
        self._ready.extend(holds)
        self.waiters.wake(len(holds))

    def add_first(self, hold: Hold) -> None:
        """This comes next."""
        self._ready.appendleft(hold)
        self.waiters.wake()

    def remove(self, unwanted: Callable[[Hold], bool]) -> None:
        """Take these out, unless they are counted."""
        self._ready = deque(hold for hold in self._ready if not unwanted(hold))

    def clean(self) -> None:
        """Take out what is not ours any more."""
        self._ready = deque(hold for hold in self._ready if hold.is_ours)
        self._counted = deque(hold for hold in self._counted if hold.is_ours)

    # -- receiving ---------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Hold]:
        """Up to ``limit`` that are counted. Others are counted meanwhile, as far as allowed."""
        taken: list[Hold] = []
        counted = self._counted
        while counted and len(taken) < limit:
            hold = counted.popleft()
            if hold.is_ours:
                taken.append(hold)
        if taken:
            self._taken_at = self._loop.time()
            self._taken = len(taken)
            if self.ahead and 2 * len(counted) <= self.ahead:  # few at a time cost most
                self.count(self.ahead - len(counted))
        return taken

    def count(self, most: int) -> bool:
        """Count some, unless that is being done; False if there are none."""
        if self._counting is not None:
            return True
        holds: list[Hold] = []
        while self._ready and len(holds) < most:
            hold = self._ready.popleft()
            if hold.is_ours and not hold.partition.leaving:
                holds.append(hold)
        if holds:
            self._counting = self._loop.create_task(self._count(holds, self._begin(holds)))
        return bool(holds)

    async def counted(self) -> bool:
        """Wait until that is done; False if it could not be stored.

        Who waits may be cancelled: they are counted all the same.
        """
        if self._counting is None:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(waiter)
        return await waiter

    async def _count(self, holds: Sequence[Hold], commits: _Commits) -> None:
        stored = False
        try:
            stored = await _all_stored(commits)
        finally:
            self._counting = None
            going = [hold for hold in holds if not stored or hold.partition.leaving]
            if stored:
                self._counted.extend(hold for hold in holds if not hold.partition.leaving)
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(stored)
            self._back(going)
            self._watch()
            self.waiters.wake(len(self._counted))
            self._changed()

    async def count_now(self, hold: Hold) -> bool:
        """Deliver a message that was found by other means; whether that is stored."""
        self.remove(lambda one: one.offset == hold.offset and one.partition is hold.partition)
        stored = False
        try:
            stored = await _all_stored(self._begin([hold]))
        finally:
            if not stored:
                self._back([hold])
        return stored and hold.is_ours

    def _begin(self, holds: Sequence[Hold]) -> _Commits:
        partitions: dict[Partition, None] = {}
        for hold in holds:
            partition = hold.partition
            assert partition.progress is not None
            hold.count = partition.progress.begin(hold.offset)
            partitions[partition] = None
        return [self._commits.store(one) for one in partitions]

    # -- giving back -------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Nobody is going to receive what is counted: it is not counted any more."""
        counted, self._counted = self._counted, deque()
        self._back(counted)

    async def put_back(self) -> MatadorError | None:
        """The same, and wait until that is stored; None, or why it is not."""
        self.ahead = 0
        if self._counting is not None:
            await asyncio.wait([self._counting])
        commits = [self._commits.store(one) for one in {hold.partition for hold in self._counted}]
        self.give_back()
        outcomes = [await one for one in commits]
        return next((one for one in outcomes if not _is_well(one)), None)

    def leave(self, partitions: Iterable[Partition]) -> None:
        """These are going to be somebody else's."""
        leaving = set(partitions)
        going = [hold for hold in self._counted if hold.partition in leaving]
        self._counted = deque(hold for hold in self._counted if hold.partition not in leaving)
        self._back(going)

    def _back(self, holds: Iterable[Hold]) -> None:
        back = [hold for hold in holds if hold.is_ours]
        for hold in reversed(back):
            if hold.partition.progress is not None:
                hold.partition.progress.release(hold.offset)
                self._ready.appendleft(hold)
        if back:
            self._commits.soon({hold.partition for hold in back})
            self.waiters.wake(len(back))
            self._changed()

    def _watch(self) -> None:
        if self._counted and not self._watched:
            self._watched = True
            self._loop.call_later(_LONGEST_WAIT, self._look)

    def _look(self) -> None:
        """What has waited for too long is not counted any more: a crash would count for it."""
        self._watched = False
        if self._loop.time() - self._taken_at >= _LONGEST_WAIT:
            self.ahead = 0
            self.give_back()
        self._watch()


async def _all_stored(commits: _Commits) -> bool:
    outcomes = [await one for one in commits]
    return all(map(_is_well, outcomes))


def _is_well(outcome: Outcome) -> bool:
    """What is somebody else's by now is no matter of ours."""
    return outcome is None or isinstance(outcome, LeaseLostError)
