"""One event, several subscribers: F23 and F24."""

from __future__ import annotations

from collections import Counter

from chaos.application import NAMESPACE
from chaos.arena import Arena, changed, expect
from chaos.catalogue import Catalogue
from chaos.profiles import ReadsAhead, SpoilsQueues
from chaos.settings import Handler, Publishing
from matador.model.topology import dead_letter_name

KIB = 1 << 10
MIB = 1 << 20
ROOM = 48 * MIB
"""More memory than the messages in hand should take, without the buffers of a broker's client."""

NAMES = ("first", "second", "third")


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F23", "a slow and a failing subscriber: the others unaffected, memory bounded")(
        slow_and_failing
    )
    catalogue.add(
        "F24", "one queue of a fan-out fails: the result says which were sent", SpoilsQueues
    )(queue_fails)
    catalogue.add("F24-kill", "publisher killed in a fan-out: what it reported sent is there")(
        killed_in_a_fan_out
    )


def slow_and_failing(arena: Arena) -> str:
    """Large messages pile up before a subscriber that does not move."""
    gate = arena.gate()
    handlers = (
        Handler(name="quick", queue="quick"),
        Handler(name="slow", queue="slow", gate=str(gate)),
        Handler(name="failing", queue="failing", failures=1.0),
    )
    buffers = arena.profile.buffers if isinstance(arena.profile, ReadsAhead) else 0
    room = ROOM + len(handlers) * buffers
    size = 180 * KIB
    count = arena.many(round(1.17 * room / size))
    app = arena.app(concurrency=2, max_attempts=2, handlers=handlers)
    worker = arena.worker(app)
    before = most = worker.memory
    publisher = arena.publisher(app, Publishing(count=count, size=size, together=10))
    history = arena.history
    failed = dead_letter_name(f"{NAMESPACE}.failing", "undeliverable")

    def others_done() -> bool:
        nonlocal most
        most = max(most, worker.memory)
        quick = sum(name == "quick" for _, name in history.completed)
        return quick == count and arena.profile.depth(failed) == count

    arena.wait(others_done, "the others to have done all of theirs")
    arena.wait_exit(publisher)
    held = sum(name == "slow" for _, name in history.starts)
    expect(held == app.concurrency, f"the slow one has {held} messages, not {app.concurrency}")
    grown, piled = most - before, count * size
    expect(grown < room < piled, f"{grown // MIB} MiB taken while {piled // MIB} MiB piled up")
    gate.touch()
    arena.wait_empty()
    arena.judge()
    return f"{count} handled beside it, {piled // MIB} MiB piled up, {grown / MIB:.0f} MiB taken"


def queue_fails(arena: Arena) -> str:
    """One of three queues takes no more while a publisher is connected."""
    profile, gate, count = arena.profile, arena.gate(), arena.many(10)
    assert isinstance(profile, SpoilsQueues)
    app = arena.app(handlers=_three())
    publisher = arena.publisher(app, Publishing(count=count, gate=str(gate)))
    arena.wait_ready(publisher)
    profile.spoil_queue("chaos.second")
    gate.touch()
    arena.wait_exit(publisher)
    sent = Counter(name for _, name in arena.look().sent)
    refused = Counter(one.subscriber for one in arena.history.refused.values())
    errors = {one.error for one in arena.history.refused.values()}
    expect(sent == {"first": count, "third": count}, f"sent: {dict(sent)}")
    expect(refused == {"second": count}, f"refused: {dict(refused)}")
    profile.mend_queue("chaos.second")
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return f"{count} events, each sent to first and third; for second: {', '.join(errors)}"


def killed_in_a_fan_out(arena: Arena) -> str:
    """Publishers are killed while events go to three queues."""
    app = arena.app(handlers=_three())
    history, first, kills = arena.history, 0, arena.many(2)
    for _ in range(kills):
        publisher = arena.publisher(app, Publishing(first=first, count=1_000_000, callers=8))
        enough = len(history.sent) + arena.random.randint(1, 300)
        arena.wait(lambda enough=enough: len(history.sent) >= enough, "some to be sent")
        publisher.kill()
        arena.look()
        first = max(history.intents) + 1
    there = {one.target for one in arena.waiting()}
    missing = history.sent.keys() - there
    expect(not missing, f"{len(missing)} reported as sent are not there")
    parts = Counter(sum((seq, name) in there for name in NAMES) for seq in history.intents)
    arena.worker(changed(app, concurrency=20))
    arena.wait_empty()
    arena.judge()
    whole, none = parts.pop(3, 0), parts.pop(0, 0)
    return f"{kills} kills: {whole} events whole, {none} not at all, {parts.total()} in part"


def _three() -> tuple[Handler, ...]:
    return tuple(Handler(name=name, queue=name) for name in NAMES)
