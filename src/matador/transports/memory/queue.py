"""One queue in memory: its ready, delayed, blocked and held messages.

A plain data structure without a loop or a clock: the time is passed in. Messages without a delay, a
priority or an earlier message of their key go through a deque; all others are sorted by heaps. An
entry that is removed from the middle of a deque or heap stays there and is skipped later: its state
or the number of its hold shows that it is obsolete.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Protocol

from matador.model.job_limits import NO_LIMITS, JobLimits
from matador.model.message import Message, QueueDepth
from matador.transports.kit.wakeup import Waiters
from matador.transports.memory.entry import Entry, EntryState, MemoryHold
from matador.transports.memory.limits import JobLimiter, Sorted


class JobIndex(Protocol):
    """An index of the jobs of a queue by id. The queue calls it for every message that enters or
    leaves."""

    def entered(self, queue: MemoryQueue, entry: Entry) -> None:
        """A message was stored."""
        ...

    def started(self, entry: Entry) -> None:
        """A message was delivered."""
        ...

    def left(self, queue: MemoryQueue, entry: Entry) -> None:
        """A message left the queue."""
        ...


class MemoryQueue:
    """The messages of one queue. ``entries`` has them in the order in which they were sent,
    including retained ones."""

    def __init__(self, name: str, *, ordered: bool) -> None:
        self.name = name
        self.ordered = ordered
        self.priorities = False
        self.retention: float | None = None
        self.max_length: int | None = None
        self.ttl: float | None = None
        self.expires: float | None = None
        self.unused_since = 0.0
        self.deleted = False
        self.jobs: JobIndex | None = None
        self.paused = False
        self.receivers = 0
        self.waiters = Waiters()
        self._seq = 0
        self.entries: dict[int, Entry] = {}
        self.clear()

    def clear(self) -> None:
        """Delete all messages, including held ones."""
        for entry in self.entries.values():
            entry.state = "done"
        self.entries = {}
        self.held = self.delayed = self.completed = 0
        self._fresh: deque[Entry] = deque()
        self._ready: Sorted = []
        self._delayed: Sorted = []
        self._leases: Sorted = []
        self._keys: dict[str, deque[Entry]] = {}  # the unfinished of each key, in order
        self._finished: deque[tuple[float, int]] = deque()  # readable until, seq
        self._limiter: JobLimiter | None = None  # no limit was ever set

    # -- in ---------------------------------------------------------------------------------------

    def put(self, message: Message, now: float) -> None:
        """Store a message at the end."""
        self._seq = seq = self._seq + 1
        entry = Entry(seq, message, now)
        self.entries[seq] = entry
        if self.jobs is not None:
            self.jobs.entered(self, entry)
        plain = True
        if message.ordering_key is not None and self.ordered:
            line = self._keys.setdefault(message.ordering_key, deque())
            line.append(entry)
            plain = len(line) == 1
        if message.delay > 0:
            entry.due = now + message.delay
            plain = False
        if plain and (message.priority is None or not self.priorities):
            self._fresh.append(entry)
        else:
            self._enter(entry, now)
        if self.max_length is not None or self.ttl is not None:
            self._drop_old(now)

    def put_blocked(self, message: Message, now: float) -> Entry:
        """Store a message that is not delivered until ``unblock``."""
        self._seq = seq = self._seq + 1
        entry = self.entries[seq] = Entry(seq, message, now, state="blocked")
        if self.jobs is not None:
            self.jobs.entered(self, entry)
        return entry

    def unblock(self, entry: Entry, now: float) -> None:
        """Make a message ready that was stored by ``put_blocked``."""
        if entry.message.delay > 0:
            entry.due = now + entry.message.delay
        self._enter(entry, now)

    def put_again(self, entry: Entry, message: Message, now: float) -> bool:
        """Store the successor of a held message in its place, if it has the same key."""
        key = entry.message.ordering_key
        if key is None or message.ordering_key != key or not self.ordered:
            return False
        self._let_go(entry)
        entry.message = message
        entry.deliveries = 0
        entry.stored = now
        entry.due = now + message.delay
        self._enter(entry, now)
        return True

    def _enter(self, entry: Entry, now: float) -> None:
        key = entry.message.ordering_key
        if entry.due > now:
            entry.state = "delayed"
            self.delayed += 1
            heappush(self._delayed, (entry.due, entry.seq, entry.turn, entry))
        elif key is not None and self.ordered and self._keys[key][0] is not entry:
            entry.state = "blocked"
        else:
            self._make_ready(entry)

    def _make_ready(self, entry: Entry) -> None:
        entry.state = "ready"
        heappush(self._ready, self._place(entry))

    def _place(self, entry: Entry) -> tuple[float, int, int, Entry]:
        priority = entry.message.priority if self.priorities else None
        return inf if priority is None else -priority, entry.seq, entry.turn, entry

    # -- out --------------------------------------------------------------------------------------

    def take_next(
        self, limit: int, lease_until: float = inf, limits: JobLimits = NO_LIMITS, now: float = 0.0
    ) -> list[MemoryHold]:
        """Hold up to ``limit`` messages that are ready, the most urgent first."""
        if self.paused:
            return []
        if limits is not NO_LIMITS or self._limiter is not None:
            return self._take_limited(limit, lease_until, limits, now)
        holds: list[MemoryHold] = []
        while len(holds) < limit and (entry := self._next()) is not None:
            holds.append(self._hold(entry, lease_until))
        return holds

    def _take_limited(
        self, limit: int, lease_until: float, limits: JobLimits, now: float
    ) -> list[MemoryHold]:
        if self._limiter is None:
            held = (entry for entry in self.entries.values() if entry.state == "held")
            self._limiter = JobLimiter(held)
        limiter = self._limiter
        for entry in limiter.change(limits.per_key):
            self._make_ready(entry)
        limit = limiter.room(limits.rate, limit, now)
        holds: list[MemoryHold] = []
        while len(holds) < limit and (entry := self._next()) is not None:
            if limiter.may_run(entry):
                holds.append(self._hold(entry, lease_until))
            else:
                entry.state = "blocked"
                limiter.park(self._place(entry))
        limiter.count(limits.rate, len(holds), now)
        return holds

    def _let_go(self, entry: Entry) -> None:
        """End the hold of a message."""
        self.held -= 1
        if self._limiter is not None:
            self._end_turn(self._limiter, entry)

    def _end_turn(self, limiter: JobLimiter, entry: Entry) -> None:
        """Let the next parked job of the same key run."""
        other = limiter.ended(entry)
        if other is not None:
            self._make_ready(other)

    def take(self, entry: Entry, lease_until: float = inf) -> MemoryHold | None:
        """Hold one message, ready or not; None if it is held or finished."""
        if entry.state in ("held", "done"):
            return None
        if entry.state == "delayed":
            self.delayed -= 1
        return self._hold(entry, lease_until)

    def _next(self) -> Entry | None:
        fresh, ready = self._fresh, self._ready
        while ready and not _current(ready[0], "ready"):
            heappop(ready)
        while fresh and fresh[0].state != "fresh":
            fresh.popleft()
        if ready and (not fresh or ready[0] < (inf, fresh[0].seq)):
            return heappop(ready)[3]
        return fresh.popleft() if fresh else None

    @property
    def is_due(self) -> bool:
        """Whether a receiver would get a message now."""
        if self.paused or self.limited:
            return False
        fresh, ready = self._fresh, self._ready
        while ready and not _current(ready[0], "ready"):
            heappop(ready)
        while fresh and fresh[0].state != "fresh":
            fresh.popleft()
        return bool(fresh or ready)

    def _hold(self, entry: Entry, lease_until: float) -> MemoryHold:
        entry.state = "held"
        entry.deliveries += 1
        entry.turn = turn = entry.turn + 1
        self.held += 1
        if self._limiter is not None:
            self._limiter.started(entry)
        if self.jobs is not None:
            self.jobs.started(entry)
        if lease_until != inf:
            entry.lease_until = lease_until
            heappush(self._leases, (lease_until, entry.seq, turn, entry))
        return MemoryHold(entry, turn)

    # -- settling ---------------------------------------------------------------------------------

    def complete(self, entry: Entry, now: float) -> None:
        """Finish a held message."""
        self.completed += 1
        if self.retention is None:
            del self.entries[entry.seq]
        else:
            self._finished.append((now + self.retention, entry.seq))
        if self.jobs is None and self._limiter is None and entry.message.ordering_key is None:
            self.held -= 1  # nearly every message
            entry.state = "done"
        else:
            self._finish(entry)

    def remove(self, entry: Entry) -> None:
        """Delete an unfinished message, even if it is held."""
        del self.entries[entry.seq]
        self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        if entry.state == "held":
            self.held -= 1
            if self._limiter is not None:
                self._end_turn(self._limiter, entry)
        elif entry.state == "delayed":
            self.delayed -= 1
        elif self._limiter is not None and (other := self._limiter.next_of(entry)) is not None:
            self._make_ready(other)  # it may have been next in line
        entry.state = "done"
        if self.jobs is not None:
            self.jobs.left(self, entry)
        key = entry.message.ordering_key
        if key is None or not self.ordered:
            return
        line = self._keys[key]
        while line and line[0].state == "done":
            line.popleft()
        if not line:
            del self._keys[key]
        elif line[0].state == "blocked":
            self._enter(line[0], inf)

    def give_back(self, entry: Entry, now: float, *, counted: bool) -> None:
        """Put a held message back in its place; ``counted``: the delivery counts."""
        self._let_go(entry)
        if not counted:
            entry.deliveries -= 1
        self._enter(entry, now)

    def give_back_all(self, now: float) -> None:
        """Put back everything that is held; the deliveries count."""
        for entry in self.entries.values():
            if entry.state == "held":
                self.give_back(entry, now, counted=True)

    def renew(self, entry: Entry, lease_until: float) -> None:
        """Extend the lease of a held message."""
        entry.lease_until = lease_until
        heappush(self._leases, (lease_until, entry.seq, entry.turn, entry))

    # -- time -------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """The earliest time at which ``pass_time`` has something to do."""
        due = self._delayed[0][0] if self._delayed else inf
        if self._limiter is not None:
            due = min(due, self._limiter.closed_until)
        if self.expires is not None and not self.receivers:
            due = min(due, self.unused_since + self.expires)
        return min(due, self._leases[0][0]) if self._leases else due

    def has_expired(self, now: float) -> bool:
        """Whether this is a temporary queue that was unused for too long."""
        return (
            self.expires is not None
            and not self.receivers
            and now >= self.unused_since + self.expires
        )

    def pass_time(self, now: float) -> None:
        """End due delays and expired leases, and delete messages past their time to live."""
        if self._limiter is not None:
            self._limiter.pass_time(now)
        delayed, leases = self._delayed, self._leases
        while delayed and delayed[0][0] <= now:
            item = heappop(delayed)
            if _current(item, "delayed"):
                self.delayed -= 1
                self._enter(item[3], now)
        while leases and leases[0][0] <= now:
            item = heappop(leases)
            if _current(item, "held") and item[3].lease_until <= now:
                self.give_back(item[3], now, counted=True)
        while self._finished and self._finished[0][0] <= now:
            del self.entries[self._finished.popleft()[1]]
        if self.ttl is not None:
            self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        stored_after = -inf if self.ttl is None else now - self.ttl
        surplus = 0 if self.max_length is None else len(self.entries) - self.max_length
        drop: list[Entry] = []
        for entry in self.entries.values():
            if len(drop) >= surplus and entry.stored > stored_after:
                break
            is_old = len(drop) < surplus or max(entry.stored, entry.due) <= stored_after
            if is_old and entry.state != "held":
                drop.append(entry)
        for entry in drop:
            self.remove(entry)

    # -- browsing ---------------------------------------------------------------------------------

    @property
    def depth(self) -> QueueDepth:
        """The number of messages in each state; blocked ones count as ready."""
        unfinished = len(self.entries) - len(self._finished)
        ready = unfinished - self.held - self.delayed
        return QueueDepth(
            ready=ready, delayed=self.delayed, in_flight=self.held, consumers=self.receivers
        )

    @property
    def limited(self) -> bool:
        """Whether limits hold back messages that could be received."""
        return self._limiter is not None and self._limiter.holds_back

    def page(self, after: int, limit: int, *, finished: bool) -> list[Entry]:
        """Up to ``limit`` entries after a place, in the order in which they were sent."""
        first = next(iter(self.entries), self._seq + 1)
        entries = map(self.entries.get, range(max(after + 1, first), self._seq + 1))
        there = (entry for entry in entries if entry is not None)
        wanted = (entry for entry in there if finished or entry.state != "done")
        return list(islice(wanted, max(limit, 0)))

    def purge(self) -> int:
        """Delete all messages that are neither held nor finished. Returns their number."""
        gone = [entry for entry in self.entries.values() if entry.state not in ("held", "done")]
        for entry in gone:
            self.remove(entry)
        self._fresh.clear()
        self._ready.clear()
        self._delayed.clear()
        return len(gone)

    def wake(self) -> None:
        """Wake as many waiting receivers as there may be messages."""
        if self.paused:
            return
        self.waiters.wake(len(self._fresh) + len(self._ready))


def _current(item: tuple[float, int, int, Entry], state: EntryState) -> bool:
    entry = item[3]
    return entry.state == state and entry.turn == item[2]
