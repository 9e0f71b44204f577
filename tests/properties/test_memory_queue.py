"""Whatever is done to a queue in memory, nothing is lost, doubled, early or out of its order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from matador.model.message import Message
from matador.transports.memory.entry import Entry, MemoryHold
from matador.transports.memory.queue import MemoryQueue

LEASE = 5.0


class MemoryQueueMachine(RuleBasedStateMachine):
    """The model is the set of unfinished ids; each rule checks what it receives against it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = MemoryQueue("q", ordered=True)
        self.queue.priorities = True
        self.now = 0.0
        self.sent = 0
        self.alive: set[str] = set()
        self.holds: list[MemoryHold] = []

    @rule(
        kinds=st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 1.0, 7.0]),
                st.sampled_from([None, None, 1, 9]),
                st.sampled_from([None, None, "k", "l"]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def put(self, kinds: list[tuple[float, int | None, str | None]]) -> None:
        for delay, priority, key in kinds:
            self.sent += 1
            message = Message(str(self.sent), "q", b"", {}, delay, priority, key)
            self.queue.put(message, self.now)
            self.alive.add(message.id)

    @rule(limit=st.integers(1, 4))
    def receive(self, limit: int) -> None:
        eligible = sorted(filter(self.is_eligible, self.queue.entries.values()), key=self.rank)
        holds = self.queue.take_next(limit, self.now + LEASE)
        # The first of a batch frees nobody else, as it is not finished: so the order is known.
        assert [hold.entry.seq for hold in holds] == [entry.seq for entry in eligible[:limit]]
        self.holds.extend(holds)

    def is_eligible(self, entry: Entry) -> bool:
        if entry.state in ("held", "done") or entry.due > self.now:
            return False
        key = entry.message.ordering_key
        return key is None or not any(
            other.message.ordering_key == key and other.state != "done"
            for other in self.queue.entries.values()
            if other.seq < entry.seq
        )

    @staticmethod
    def rank(entry: Entry) -> tuple[bool, int, int]:
        priority = entry.message.priority
        return (priority is None, -(priority or 0), entry.seq)

    @rule(which=st.integers(0, 20), fate=st.sampled_from(["complete", "release", "retry", "renew"]))
    def settle(self, which: int, fate: str) -> None:
        self.holds = [hold for hold in self.holds if hold.valid]  # the others lost their lease
        if not self.holds:
            return
        hold = self.holds.pop(which % len(self.holds))
        entry = hold.entry
        if fate == "complete":
            self.queue.complete(entry, self.now)
            self.alive.discard(entry.message.id)
        elif fate == "release":
            self.queue.give_back(entry, self.now, counted=False)
        elif fate == "renew":
            self.queue.renew(entry, self.now + LEASE)
            self.holds.append(hold)
        else:
            old = entry.message
            again = Message(old.id, "q", b"", {}, 2.0, old.priority, old.ordering_key)
            if not self.queue.put_again(entry, again, self.now):
                self.queue.put(again, self.now)
                self.queue.remove(entry)
        if fate != "renew":
            assert not hold.valid

    @rule(which=st.integers(0, 20))
    def take(self, which: int) -> None:
        if not self.queue.entries:
            return
        entry = list(self.queue.entries.values())[which % len(self.queue.entries)]
        held = entry.state == "held"
        hold = self.queue.take(entry, self.now + LEASE)
        assert (hold is None) == held
        if hold is not None:
            self.holds.append(hold)

    @rule(by=st.sampled_from([0.5, 1.0, 3.0, 6.0]))
    def pass_time(self, by: float) -> None:
        self.now += by
        self.queue.pass_time(self.now)

    @rule(upheaval=st.sampled_from(["none", "none", "none", "disconnect", "purge"]))
    def upheave(self, upheaval: str) -> None:
        if upheaval == "disconnect":
            self.queue.give_back_all(self.now)
            assert not any(hold.valid for hold in self.holds)
        elif upheaval == "purge":
            held = {e.message.id for e in self.queue.entries.values() if e.state == "held"}
            assert self.queue.purge() == len(self.alive) - len(held)
            self.alive = held

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        ids = [entry.message.id for entry in self.queue.entries.values()]
        assert sorted(ids) == sorted(self.alive)

    @invariant()
    def the_counts_are_right(self) -> None:
        states = [entry.state for entry in self.queue.entries.values()]
        depth = self.queue.depth
        assert depth.in_flight == states.count("held")
        assert depth.delayed == states.count("delayed")
        assert depth.total == len(states)

    @invariant()
    def nobody_is_held_for_too_long(self) -> None:
        held = [entry for entry in self.queue.entries.values() if entry.state == "held"]
        assert all(entry.lease_until > self.now for entry in held)
        assert self.queue.next_time() > self.now


TestMemoryQueue = MemoryQueueMachine.TestCase
TestMemoryQueue.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
