"""Commits of one member of a group: one at a time, each for all that has changed meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from confluent_kafka import TopicPartition

from matador.errors import LeaseLostError, MatadorError, SendTimeoutError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.deliveries import Partition
from matador.transports.kafka.errors import is_rebalancing, still_ours, translate
from matador.transports.kafka.poller import Poller
from matador.transports.kit.backoff import Backoff
from matador.transports.kit.errors import lease_lost

_TURNS = 2  # of the event loop

Outcome: TypeAlias = MatadorError | None
_Waiting: TypeAlias = dict[Partition, list[asyncio.Future[Outcome]]]


class Commits:
    """Stores the progress of partitions.

    A commit stores all that is known when it is made: whoever asked before that is served by it.
    ``at_once`` says whether there is much to do meanwhile.
    """

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        poller: Poller,
        partitions: Mapping[int, Partition],
        *,
        changed: Callable[[], None],
        at_once: Callable[[], bool],
    ) -> None:
        self._where = client.where
        self._session = client.address.session
        self._timeout = client.address.timeout
        self._queue = queue
        self._poller = poller
        self._partitions = partitions
        self._changed = changed
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._waiting: _Waiting = {}
        self._served: _Waiting = {}
        self._running: asyncio.Task[None] | None = None
        self._verified = time.monotonic()
        self.lock = asyncio.Lock()

    @property
    def pending(self) -> bool:
        """Whether there are some that are not on their way yet."""
        return bool(self._waiting)

    def heard(self) -> None:
        """The group counts us as a member now."""
        self._verified = time.monotonic()

    def soon(self, partitions: Iterable[Partition]) -> None:
        """Store their progress; nobody waits for it."""
        for one in partitions:
            self.store(one)

    def store(self, partition: Partition) -> asyncio.Future[Outcome]:
        """Store the progress of a partition; None, or why it is not stored."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting.setdefault(partition, []).append(future)
        if self._running is None:
            self._running = self._loop.create_task(self._run())
        return future

    async def verify(self, partition: Partition) -> Outcome:
        """Make sure that a partition is still ours, if we have not heard of that for a while."""
        if time.monotonic() - self._verified < self._session / 2:
            return None
        return await self.store(partition)

    async def drain(self, partitions: Iterable[Partition], timeout: float) -> None:
        """Wait until those of some partitions were made, for a while."""
        under_way = [
            future
            for one in partitions
            for part in (self._served, self._waiting)
            for future in part.get(one, ())
        ]
        if under_way:
            await asyncio.wait(under_way, timeout=timeout)

    async def _run(self) -> None:
        """One commit after the other; again while the group is being rearranged."""
        backoff = Backoff(0.01, 0.2)
        until = self._loop.time() + self._timeout
        try:
            while self._waiting:
                async with self.lock:
                    served = self._served = self._waiting
                    self._waiting = {}
                    outcomes = await self._commit(served)
                again = [one for one, found in outcomes.items() if is_rebalancing(found)]
                if not again:
                    until = self._loop.time() + self._timeout
                elif self._loop.time() > until:
                    again.clear()
                for one in again:
                    self._waiting.setdefault(one, [])[:0] = served.pop(one, [])
                self._served = {}
                for one, futures in served.items():
                    _resolve(futures, self._outcome(one, outcomes.get(one)))
                self._changed()
                if again:
                    await backoff.sleep()
                elif self._at_once():
                    await _let_others_in()
        except BaseException as error:
            failure = SendTimeoutError(f"a commit of {self._queue!r} was given up: {error!r}")
            for futures in (*self._served.values(), *self._waiting.values()):
                _resolve(futures, failure)
            self._served, self._waiting = {}, {}
            raise
        finally:
            self._running = None

    def _outcome(self, partition: Partition, outcome: Outcome) -> Outcome:
        """Whether a partition is lost, a rebalance says, and not a commit that came in between."""
        if not partition.owned:
            return lease_lost(self._queue, "its partition is another worker's")
        return still_ours(outcome) if isinstance(outcome, LeaseLostError) else outcome

    async def _commit(self, partitions: Iterable[Partition]) -> dict[Partition, Outcome]:
        asked = time.monotonic()
        places = [place_of(one) for one in partitions if one.owned]
        offsets = [place for place in places if place is not None]
        if not offsets:
            return {}
        mine = dict(self._partitions)
        call = self._poller.commit(offsets, at_once=self._at_once())
        done, _ = await asyncio.wait([call], timeout=self._timeout + 1)
        if not done:
            late = SendTimeoutError(f"{self._where}: no answer to a commit of {self._queue!r}")
            return {mine[one.partition]: late for one in offsets if one.partition in mine}
        found: dict[Partition, Outcome] = {}
        for number, error in call.result().items():
            if (partition := mine.get(number)) is None:
                continue
            outcome = None if error is None else translate(error, self._where, queue=self._queue)
            found[partition] = outcome
            if outcome is None:
                self._verified = asked
            self._hold_if_crowded(partition)
        return found

    def _hold_if_crowded(self, partition: Partition) -> None:
        """Do not read on where too much is known about too many messages to be stored."""
        crowded = partition.progress is not None and partition.progress.crowded
        if crowded != partition.paused:
            partition.paused = crowded
            self._poller.pause_or_resume(partition)


def _resolve(futures: Iterable[asyncio.Future[Outcome]], outcome: Outcome) -> None:
    for future in futures:
        if not future.done():
            future.set_result(outcome)


async def _let_others_in() -> None:
    """Those who heard of the last commit a moment ago have the next things to store: in the first
    turn who settles, in the second who receives. In the third, handlers begin."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def place_of(partition: Partition) -> TopicPartition | None:
    """What to commit for a partition; None if nothing is known of it."""
    if partition.progress is None:
        return None
    offset, text = partition.progress.commit()
    return TopicPartition(partition.topic, partition.number, offset, metadata=text)
