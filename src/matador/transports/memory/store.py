"""The broker in memory: queues and exchanges by name, storing, settling, and one alarm for all.

Knows nothing of connections. No change awaits anything, so each is atomic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from math import inf, isnan
from types import NoneType

import msgspec

from matador.errors import (
    ConfigurationError,
    DelaysNotSupportedError,
    MatadorError,
    UnstorableError,
)
from matador.model import job as names
from matador.model.capabilities import Capabilities
from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import (
    Complete,
    DeadLetter,
    Message,
    Once,
    Receipt,
    Release,
    Retry,
    Settlement,
    TopologyNote,
)
from matador.model.topology import Topology, dead_letter_name
from matador.transports.clock import Alarm, Alarms, Clock, SystemClock
from matador.transports.kit.dead_letters import dead_letter_of
from matador.transports.kit.errors import lease_lost, queue_not_found
from matador.transports.kit.jobs import as_canceled, whole
from matador.transports.kit.notes import ignored_exchanges
from matador.transports.kit.properties import refused_properties
from matador.transports.kit.replies import REPLY_PREFIX
from matador.transports.kit.routing import RoutingTable
from matador.transports.memory.entry import Entry, MemoryHold, delivery_of
from matador.transports.memory.jobs import MemoryJobs
from matador.transports.memory.queue import MemoryQueue

_WHERE = "memory"


class MemoryStore:
    """All queues. An alarm ends delays and leases on time."""

    def __init__(self, capabilities: Capabilities, clock: Clock) -> None:
        self._can = capabilities
        self._clock = clock
        self._alarms: Alarms = clock if isinstance(clock, Alarms) else SystemClock()
        self._alarm: Alarm | None = None
        self._alarm_at = inf
        self._queues: dict[str, MemoryQueue] = {}
        self._jobs: dict[str, MemoryJobs] = {}
        self._routes = RoutingTable()
        self._once: dict[Once, set[str]] = {}  # the ids of each batch that is not sealed
        self._sealed: dict[str, int] = {}  # the last sealed batch of each scope

    def has(self, name: str) -> bool:
        """Whether the queue exists."""
        return name in self._queues

    def queue(self, name: str) -> MemoryQueue:
        """A queue, after ``pass_time``.

        Raises:
            QueueNotFoundError: there is no such queue.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise queue_not_found(name, _WHERE, self._queues)
        queue.pass_time(self._clock.monotonic())
        return queue

    def apply(self, topology: Topology) -> Sequence[TopologyNote]:
        """Create missing queues and exchanges, and update settings."""
        notes: list[TopologyNote] = []
        for declared in topology.queues:
            full = topology.full_name(declared.name)
            queue = self.made(full)
            queue.priorities = declared.priorities and self._can.priorities
            queue.retention = declared.retention if self._can.replay else None
            queue.max_length, queue.ttl = declared.max_length, declared.message_ttl
            if self._can.routing:
                queue.expires, queue.unused_since = declared.expires, self._clock.monotonic()
            if declared.priorities and not self._can.priorities:
                notes.append(TopologyNote(full, "priorities are ignored"))
            if declared.retention is not None and not self._can.replay:
                notes.append(TopologyNote(full, "finished messages are not retained"))
        if self._can.routing:
            notes += self._routes.apply(topology)
        else:
            notes += ignored_exchanges(topology)
        for declared, kind, name in topology.dead_letter_names():
            letters, limits = self.made(name), topology.letters_of(declared)[kind]
            letters.max_length, letters.ttl = limits.max_length, limits.ttl
        self._tend(self._queues.values())
        return notes

    def unbind(self, exchange: str, queue: str, pattern: str) -> None:
        """Remove a binding."""
        self._routes.unbind(exchange, queue, pattern)

    def delete(self, name: str) -> None:
        """Delete a queue with its bindings and messages; wake its waiting receivers."""
        if name in self._jobs:
            raise ConfigurationError(f"queue {name!r} has jobs; use delete_jobs")
        queue = self._queues.pop(name, None)
        self._routes.remove_queue(name)
        if queue is not None:
            queue.deleted = True
            queue.clear()
            queue.waiters.wake(len(queue.waiters))

    def left(self, queue: MemoryQueue) -> None:
        """Record that a receiver closed. The lifetime of a temporary queue starts then."""
        queue.unused_since = self._clock.monotonic()
        if not queue.deleted:
            self._set_alarm(queue.next_time())

    def made(self, name: str) -> MemoryQueue:
        """The queue of that name, created if it does not exist."""
        queue = self._queues.get(name)
        if queue is None:
            ordered = self._can.ordering == "partition"
            queue = self._queues[name] = MemoryQueue(name, ordered=ordered)
        return queue

    def open_jobs(self, name: str) -> MemoryJobs:
        """The jobs of a queue, which is created if it does not exist."""
        jobs = self._jobs.get(name)
        if jobs is None:
            if name in self._queues:
                raise ConfigurationError(f"queue {name!r} already exists and is not a job queue")
            queue = self.made(name)
            queue.priorities = self._can.priorities
            failed = self.made(dead_letter_name(name, "undeliverable"))
            jobs = self._jobs[name] = MemoryJobs(queue, failed, self._clock)
        return jobs

    def jobs(self, name: str) -> MemoryJobs:
        """The jobs of a queue, after ``pass_time``.

        Raises:
            QueueNotFoundError: there is no such queue of jobs.
        """
        jobs = self._jobs.get(name)
        if jobs is None:
            raise queue_not_found(name, _WHERE, self._jobs)
        self.queue(name)
        return jobs

    def add_jobs(self, messages: Sequence[Message]) -> list[MatadorError | None]:
        """Like ``put``, but refuses a job whose id or unique key is taken."""
        outcomes: list[MatadorError | None] = []
        for message in messages:
            jobs = self._jobs.get(message.queue)
            error = None if jobs is None else jobs.taken(message)
            if error is None:
                (error,) = self.put([message])
                if error is None and jobs is not None:
                    jobs.take_key(message)
            outcomes.append(error)
        return outcomes

    def add_flow(self, name: str, messages: Sequence[Message]) -> MatadorError | None:
        """Store jobs of which some wait for others: all or none."""
        jobs = self.jobs(name)
        for message in messages:
            error = jobs.taken(message) or self._refusal(message)
            if error is not None:
                return error
        jobs.flows.add(messages, self._clock.monotonic())
        self._tend([self._queues[name]])
        return None

    def retry_job(self, name: str, job_id: str) -> None:
        """Make a failed job wait again."""
        self.jobs(name).retry(job_id, self._clock.monotonic())
        self._tend([self.queue(name)])

    def remove_job(self, name: str, job_id: str) -> None:
        """Delete a job that is not active."""
        self.jobs(name).remove(job_id)
        self._tend([self.queue(name)])

    def cancel_job(self, name: str, job_id: str, reason: str) -> bool:
        """Delete a waiting job, or fail an active one. False: it is finished."""
        jobs, queue = self.jobs(name), self.queue(name)
        entry = jobs.unfinished(job_id)
        if entry is None:
            return False
        if entry.state != "held":
            jobs.remove(job_id)
            self._tend([queue])
            return True
        message = entry.message
        attempts = whole(message.headers, names.ATTEMPTS) + max(1, entry.deliveries)
        headers = as_canceled(message.headers, attempts, reason, self._clock.time())
        receipt = delivery_of(name, MemoryHold(entry, entry.turn)).receipt
        failed = msgspec.structs.replace(message, headers=headers, delay=0.0)
        (error,) = self.settle([DeadLetter(receipt, "undeliverable", reason, failed)])
        if error is not None:
            raise error
        return True

    def pause(self, name: str, paused: bool) -> None:
        """Pause a queue, or end the pause."""
        queue = self.queue(name)
        queue.paused = paused
        queue.wake()

    # -- in and out -------------------------------------------------------------------------------

    def put(self, messages: Sequence[Message]) -> list[MatadorError | None]:
        """Store messages. Returns None or an error for each."""
        now = self._clock.monotonic()
        touched: set[MemoryQueue] = set()
        outcomes: list[MatadorError | None] = []
        for message in messages:
            queue = self._queues.get(message.queue)
            error = None
            if (
                queue is None
                or message.delay != 0
                or message.properties is not None
                or not _is_sound(message)
            ):
                error = self._refusal(message)
            if queue is not None and error is None:  # None: a reply to a caller that has ended
                queue.put(message, now)
                touched.add(queue)
            outcomes.append(error)
        self._tend(touched)
        return outcomes

    def _refusal(self, message: Message) -> MatadorError | None:
        if not _is_sound(message):
            return UnstorableError(f"a part of the message has the wrong type: {message}"[:1000])
        if message.queue not in self._queues and not message.queue.startswith(REPLY_PREFIX):
            return queue_not_found(message.queue, _WHERE, self._queues)
        if message.delay > 0 and not self._can.delays:
            return DelaysNotSupportedError("this transport was created without delays")
        if message.properties is not None:
            return refused_properties(message.properties, self._can.properties, _WHERE)
        return None

    def publish(self, exchange: str, messages: Sequence[Message]) -> list[int | MatadorError]:
        """Store each message in the queues bound to its key. Returns how many, or an error."""
        outcomes: list[int | MatadorError] = []
        copies: list[Message] = []
        for message in messages:
            key = message.properties.routing_key if message.properties is not None else None
            try:
                queues = self._routes.queues(exchange, key or "")
            except MatadorError as error:
                outcomes.append(error)
                continue
            copies += [msgspec.structs.replace(message, queue=queue) for queue in queues]
            outcomes.append(len(queues))
        stored = iter(self.put(copies))
        for place, number in enumerate(outcomes):
            if isinstance(number, int):
                # The copies differ in their queue only: if one cannot be stored, none can.
                errors = [error for error in islice(stored, number) if error is not None]
                outcomes[place] = errors[0] if errors else number
        return outcomes

    def put_once(self, messages: Sequence[Message], once: Once) -> list[MatadorError | None]:
        """Store the messages that were not stored under ``once`` before. Returns None or an error
        for each."""
        if once.batch <= self._sealed.get(once.scope, -1):
            return [None] * len(messages)
        stored = self._once.setdefault(once, set())
        outcomes: list[MatadorError | None] = []
        for message in messages:
            error = None
            if message.id not in stored:
                (error,) = self.put([message])
                if error is None:
                    stored.add(message.id)
            outcomes.append(error)
        return outcomes

    def seal(self, once: Once) -> None:
        """Delete the ids of a batch and of the batches before it."""
        self._sealed[once.scope] = max(once.batch, self._sealed.get(once.scope, -1))
        for part in [one for one in self._once if one.scope == once.scope]:
            if part.batch <= once.batch:
                del self._once[part]

    def take_next(
        self, queue: MemoryQueue, limit: int, limits: JobLimits = NO_LIMITS
    ) -> list[MemoryHold]:
        """Hold up to ``limit`` messages that are ready."""
        now = self._clock.monotonic()
        queue.pass_time(now)
        holds = queue.take_next(limit, self._lease_until(now), limits, now)
        self._set_alarm(queue.next_time())
        return holds

    def take(self, queue: MemoryQueue, places: Sequence[int]) -> list[MemoryHold | None]:
        """Hold the messages at these positions; None for each that is held or missing."""
        until = self._lease_until(self._clock.monotonic())
        entries = [queue.entries.get(place) for place in places]
        holds = [None if entry is None else queue.take(entry, until) for entry in entries]
        self._set_alarm(queue.next_time())
        return holds

    def _lease_until(self, now: float) -> float:
        return inf if self._can.lease is None else now + self._can.lease

    # -- settling ---------------------------------------------------------------------------------

    def settle(self, settlements: Sequence[Settlement]) -> list[MatadorError | None]:
        """Carry out settlements. Returns None or an error for each."""
        now = self._clock.monotonic()
        if self._can.lease is not None:
            self.pass_time()
        touched: set[MemoryQueue] = set()
        outcomes: list[MatadorError | None] = []
        for settlement in settlements:
            receipt = settlement.receipt
            queue = self._queues.get(receipt.queue)
            hold = receipt.handle
            if queue is None or not isinstance(hold, MemoryHold) or not hold.valid:
                outcomes.append(lease_lost(receipt.queue, "was taken back"))
                continue
            touched.add(queue)
            if type(settlement) is Complete and queue.jobs is None:  # nearly every one
                queue.complete(hold.entry, now)
                outcomes.append(None)
            else:
                outcomes.append(self._settle(settlement, queue, hold.entry, now, touched))
        self._tend(touched)
        return outcomes

    def _settle(
        self,
        settlement: Settlement,
        queue: MemoryQueue,
        entry: Entry,
        now: float,
        touched: set[MemoryQueue],
    ) -> MatadorError | None:
        # By type, the most frequent first: a match statement is several times slower here.
        if type(settlement) is Complete:
            if queue.jobs is not None and (jobs := self._jobs.get(queue.name)) is not None:
                jobs.complete(entry, settlement.result)
            queue.complete(entry, now)
            return None
        if isinstance(settlement, Release):
            queue.give_back(entry, now, counted=False)
            return None
        if isinstance(settlement, DeadLetter):
            if settlement.message is not None and not _is_sound(settlement.message):
                return self._refusal(settlement.message)
            successor = dead_letter_of(settlement, entry.message)
            jobs = self._jobs.get(queue.name)
            if jobs is not None:
                jobs.flows.failed(entry.message, settlement.reason, now)
                if not jobs.fail(successor):
                    queue.remove(entry)
                    return None
        else:
            assert isinstance(settlement, Retry)
            successor = settlement.message
        error = self._refusal(successor)
        if error is None and not (
            successor.queue == queue.name and queue.put_again(entry, successor, now)
        ):
            target = self._queues.get(successor.queue)
            if target is not None:
                target.put(successor, now)
                touched.add(target)
            queue.remove(entry)
        return error

    def renew(self, receipts: Sequence[Receipt]) -> list[bool]:
        """Renew the leases of deliveries. Returns whether each was still held."""
        self.pass_time()
        until = self._lease_until(self._clock.monotonic())
        renewed: list[bool] = []
        for receipt in receipts:
            hold = receipt.handle
            if isinstance(hold, MemoryHold) and hold.valid:
                self._queues[receipt.queue].renew(hold.entry, until)
                renewed.append(True)
            else:
                renewed.append(False)
        return renewed

    def give_back_all(self) -> None:
        """Put back everything that is held; the deliveries count."""
        now = self._clock.monotonic()
        for queue in self._queues.values():
            queue.give_back_all(now)

    def clear(self) -> None:
        """Delete all messages."""
        for queue in self._queues.values():
            queue.clear()

    # -- time -------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """End delays and leases, and set the alarm for the next."""
        self.cancel_alarm()
        now = self._clock.monotonic()
        for queue in list(self._queues.values()):
            if queue.has_expired(now):
                self.delete(queue.name)
            else:
                queue.pass_time(now)
        self._tend(self._queues.values())

    def cancel_alarm(self) -> None:
        """Stop the alarm until the next ``pass_time``."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, inf

    def _tend(self, queues: Collection[MemoryQueue]) -> None:
        for queue in queues:
            queue.wake()
            self._set_alarm(queue.next_time())

    def _set_alarm(self, when: float) -> None:
        if when < self._alarm_at:
            self.cancel_alarm()
            self._alarm_at = when
            delay = max(0.0, when - self._clock.monotonic())
            self._alarm = self._alarms.call_later(delay, self.pass_time)


def _is_sound(message: Message) -> bool:
    """Whether the message can be sorted and delivered. Checked first, so that no operation fails
    halfway."""
    if type(message.body) is not bytes:
        return False
    if (
        message.delay == 0
        and message.priority is None
        and message.ordering_key is None
        and type(message.headers) is dict
    ):
        return True  # nearly every message
    return (
        isinstance(message.headers, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance] - users
        and type(message.delay) in (float, int)
        and not isnan(message.delay)
        and type(message.priority) in (NoneType, int)
        and type(message.ordering_key) in (NoneType, str)
    )
