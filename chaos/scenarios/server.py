"""A broker that ends, comes back, loses a queue or takes no more: F7 to F9, F12 and F13."""

from __future__ import annotations

from collections import Counter

from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.facts import now
from chaos.profiles import (
    SEND_TIMEOUT,
    BlocksPublishers,
    LosesQueues,
    RereadsQueues,
    Restarts,
)
from chaos.settings import Handler, Publishing

SOON = 5.0
"""Seconds within which everything must go on after the broker is back."""

SLACK = 3.0
"""Seconds that a busy machine may add to a timeout."""

LEASE = 2.0


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F7", "broker restarted while idle: delivers within 5 s", Restarts)(
        restarted_while_idle
    )
    catalogue.add("F7-kill", "the same, the broker killed", Restarts)(killed_while_idle)
    catalogue.add(
        "F8", "broker restarted with messages in flight: late settlements are harmless", Restarts
    )(restarted_in_flight)
    catalogue.add("F8-kill", "broker killed, handlers return while it is away: the same", Restarts)(
        killed_in_flight
    )
    catalogue.add("F9", "broker down while publishing: an outcome in bounded time", Restarts)(
        down_while_publishing
    )
    catalogue.add(
        "F12",
        "queue deleted: made again and consumed, or a loud failure",
        LosesQueues,
        Restarts,  # a server, of which others delete queues
    )(queue_deleted)
    catalogue.add(
        "F13", "publishers blocked: a clear error in bounded time, goes on after", BlocksPublishers
    )(publishers_blocked)


def restarted_while_idle(arena: Arena, *, kill: bool = False) -> str:
    """A worker and a publisher with nothing to do live through a restart."""
    profile, gate, end = arena.profile, arena.gate(), arena.gate("end")
    assert isinstance(profile, Restarts)
    app = arena.app()
    worker = arena.worker(app)
    arena.publish(app, 1)
    arena.wait_empty()
    publisher = arena.publisher(
        app, Publishing(first=1, count=1000, patience=0.05, gate=str(gate), end=str(end))
    )
    arena.wait_ready(publisher)
    profile.stop(kill=kill)
    profile.start()
    back = now()
    gate.touch()
    arena.wait(lambda: len(arena.history.completed) > 1, "a message to be delivered")
    seconds = (min(start.at for start in arena.starts() if start.seq) - back) / 1e9
    expect(seconds < SOON, f"delivered only {seconds:.1f} s after the broker was back")
    end.touch()
    arena.wait_exit(publisher)
    arena.wait_empty()
    expect(worker.alive, f"the worker ended:\n{worker.output[-2000:]}")
    arena.judge(duplicated=1)
    return f"delivered {seconds:.1f} s after the broker was back"


def killed_while_idle(arena: Arena) -> str:
    """The same with a kill."""
    return restarted_while_idle(arena, kill=True)


def restarted_in_flight(arena: Arena, *, kill: bool = False) -> str:
    """Handlers are running when the broker goes; what they settle later does no harm."""
    profile, gate, count = arena.profile, arena.gate(), arena.many(30)
    assert isinstance(profile, Restarts)
    app = arena.app(lease=LEASE, handlers=(Handler(gate=str(gate)),))
    arena.publish(app, count, together=count)
    worker = arena.worker(app)
    arena.wait_started(app.concurrency)
    profile.stop(kill=kill)
    if kill:
        gate.touch()
        arena.wait(
            lambda: arena.history.completed.total() >= app.concurrency, "the handlers to return"
        )
    profile.start()
    back = now()
    gate.touch()
    arena.wait_empty()
    again = min((start.at for start in arena.starts() if start.at > back), default=back)
    expect(worker.alive, f"the worker ended:\n{worker.output[-2000:]}")
    expect((again - back) / 1e9 < SOON + LEASE, "it went on only after too long a time")
    arena.publish(app, count, first=count, together=count)
    arena.wait(lambda: len(arena.history.completed) == 2 * count, "all to be handled")
    arena.wait_empty()
    runs = Counter(start.seq for start in arena.starts())
    expect(max(runs.values()) <= 2, f"some ran more than twice: {runs.most_common(3)}")
    verdict = arena.judge(duplicated=app.concurrency)
    return (
        f"{app.concurrency} in flight, {verdict.duplicated} of them run again; the worker goes on"
    )


def killed_in_flight(arena: Arena) -> str:
    """The same, settled while the broker is away."""
    return restarted_in_flight(arena, kill=True)


def down_while_publishing(arena: Arena) -> str:
    """Several callers publish all the while; the broker goes and comes back."""
    profile, end = arena.profile, arena.gate("end")
    assert isinstance(profile, Restarts)
    app, history = arena.app(), arena.history
    publisher = arena.publisher(
        app, Publishing(count=1_000_000, callers=8, patience=0.1, end=str(end))
    )
    arena.wait(lambda: len(history.sent) >= 100, "some to be sent")
    profile.stop(kill=True)
    arena.wait(lambda: len(history.refused) >= 40, "some to be refused", patience=4 * SEND_TIMEOUT)
    profile.start()
    back, sent = now(), len(arena.look().sent)
    arena.wait(lambda: len(history.sent) >= sent + 100, "publishing to go on")
    until = min((one.at for one in history.sent.values() if one.at > back), default=back)
    expect((until - back) / 1e9 < SOON, f"it went on {(until - back) / 1e9:.1f} s later only")
    end.touch()
    arena.wait_exit(publisher)
    longest = longest_wait(arena)
    errors = Counter(one.error for one in history.refused.values())
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return f"{len(history.refused)} refused ({_words(errors)}), the slowest after {longest:.1f} s"


def queue_deleted(arena: Arena) -> str:
    """The queue a worker consumes is deleted behind its back."""
    profile, gate, end = arena.profile, arena.gate(), arena.gate("end")
    assert isinstance(profile, LosesQueues)
    app = arena.app(lease=LEASE)
    worker = arena.worker(app)
    arena.publish(app, 5, together=5)
    arena.wait_empty()
    publisher = arena.publisher(
        app, Publishing(first=5, count=1000, patience=0.05, gate=str(gate), end=str(end))
    )
    arena.wait_ready(publisher)
    profile.drop_queue("chaos.events")
    since = now()
    gate.touch()
    loud = lambda: "could not receive from chaos.events" in worker.output  # noqa: E731
    arena.wait(
        lambda: len(arena.history.completed) > 5 or loud(),
        "a message to be delivered, or a loud failure",
        patience=20,
    )
    again = len(arena.history.completed) > 5
    if not again:  # whoever applies the topology makes it anew
        expect(arena.history.refused, "messages were taken for a queue that is not there")
        arena.worker(app)
        arena.wait(lambda: len(arena.history.completed) > 5, "a message to be delivered")
    end.touch()
    arena.wait_exit(publisher)
    seconds = (min(start.at for start in arena.starts() if start.seq >= 5) - since) / 1e9
    sent, completed = arena.history.sent, arena.history.completed
    arena.wait(lambda: sent.keys() <= completed.keys(), "all to be handled")
    arena.wait_empty()
    arena.judge(duplicated=len(sent) if isinstance(profile, RereadsQueues) else 0)
    how = "consumed again" if again else "a loud failure, and consumed with the next worker"
    return f"{how} after {seconds:.1f} s; {len(arena.history.refused)} were refused meanwhile"


def publishers_blocked(arena: Arena) -> str:
    """The broker takes no more for a while; a worker goes on with what it has."""
    profile, end, gate = arena.profile, arena.gate("end"), arena.gate()
    assert isinstance(profile, BlocksPublishers)
    app, history = arena.app(handlers=(Handler(gate=str(gate)),)), arena.history
    worker = arena.worker(app)
    publisher = arena.publisher(
        app, Publishing(count=1_000_000, callers=4, patience=0.2, end=str(end))
    )
    arena.wait(lambda: len(history.sent) >= 20, "some to be sent")
    profile.block()
    arena.wait(lambda: len(history.refused) >= 8, "some to be refused", patience=4 * SEND_TIMEOUT)
    gate.touch()
    held = len(history.sent)
    if profile.drains:
        arena.wait(lambda: len(history.completed) >= held // 2, "the worker to go on meanwhile")
    profile.unblock()
    sent = len(arena.look().sent)
    arena.wait(lambda: len(history.sent) >= sent + 20, "publishing to go on")
    end.touch()
    arena.wait_exit(publisher)
    longest = longest_wait(arena)
    errors = Counter(one.error for one in history.refused.values())
    expect("StorageFullError" in errors, f"refused with {_words(errors)}")
    arena.wait_empty()
    expect(worker.alive, f"the worker ended:\n{worker.output[-2000:]}")
    arena.judge()
    return f"refused {_words(errors)}, the slowest after {longest:.1f} s; then it went on"


def longest_wait(arena: Arena) -> float:
    """The longest time a publish took, in seconds; each has an outcome, and in time."""
    history = arena.look()
    outcomes = {seq: one.at for (seq, _), one in (*history.sent.items(), *history.refused.items())}
    missing = history.intents.keys() - outcomes.keys()
    expect(not missing, f"{len(missing)} publishes never had an outcome")
    longest = max(outcomes[seq] - intent.at for seq, intent in history.intents.items()) / 1e9
    expect(longest < SEND_TIMEOUT + SLACK, f"a publish took {longest:.1f} s")
    return longest


def _words(errors: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in errors.most_common())
