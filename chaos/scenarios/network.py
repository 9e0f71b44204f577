"""A network that fails between a broker and its clients, played by a proxy: F10 and F11."""

from __future__ import annotations

import time
from collections import Counter

from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.facts import now
from chaos.profiles import BehindProxy
from chaos.scenarios.server import longest_wait
from chaos.settings import Publishing

HEARTBEAT = 1.0
"""Seconds: what profiles make of a lease of two."""

CALLERS, TOGETHER = 4, 5

SLACK = 1.5
"""Seconds that a first wait before connecting again, and a busy machine, may add."""


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F10", "half-open connections: noticed within two heartbeats", BehindProxy)(
        half_open
    )
    catalogue.add("F10-publish", "publishing into half-open ones: an outcome soon", BehindProxy)(
        publishing_half_open
    )
    catalogue.add("F10-half-closed", "half-closed connections: made again at once", BehindProxy)(
        half_closed
    )
    catalogue.add("F11", "a slow and lossy network: no storm of publishes", BehindProxy)(slow)
    catalogue.add("F11-jitter", "connections cut at once come back one by one", BehindProxy)(
        reconnects
    )


def half_open(arena: Arena) -> str:
    """The connections of an idle worker die, and nobody tells it."""
    profile = arena.profile
    assert isinstance(profile, BehindProxy)
    proxy = profile.proxy
    app = arena.app(lease=2 * HEARTBEAT)
    worker = arena.worker(app)
    arena.publish(app, 1)
    arena.wait_empty()
    before = proxy.traffic.connections
    since = time.monotonic()
    proxy.swallow(new=False)
    arena.wait(lambda: proxy.traffic.connections > before, "it to connect again", patience=30)
    noticed = proxy.accepted[before] - since
    expect(noticed < 2 * HEARTBEAT + SLACK, f"noticed after {noticed:.1f} s only")
    sent = now()
    arena.publish(app, 5, first=1, together=5)
    arena.wait(lambda: len(arena.history.completed) == 6, "messages to be delivered", patience=20)
    arena.wait_empty()
    expect(worker.alive, f"the worker ended:\n{worker.output[-2000:]}")
    arena.judge(duplicated=1)
    took = (max(start.at for start in arena.starts()) - sent) / 1e9
    return (
        f"noticed {noticed:.1f} s later with heartbeats of {HEARTBEAT:g} s; goes on ({took:.1f} s)"
    )


def publishing_half_open(arena: Arena) -> str:
    """The connections of a publisher die, and it goes on publishing."""
    profile, end = arena.profile, arena.gate("end")
    assert isinstance(profile, BehindProxy)
    proxy, history = profile.proxy, arena.history
    app = arena.app(lease=2 * HEARTBEAT)
    publisher = arena.publisher(
        app, Publishing(count=100_000, callers=4, patience=0.1, end=str(end))
    )
    # Some clients connect only when they send: to begin with, all is well.
    arena.wait(lambda: len(history.sent) >= 20, "some to be sent")
    proxy.swallow(new=False)
    before = len(history.sent)
    arena.wait(lambda: len(history.sent) >= before + 20, "publishing to go on", patience=30)
    end.touch()
    arena.wait_exit(publisher)
    longest = longest_wait(arena)
    unknown = [one for one in history.refused.values() if one.error != "NotConnectedError"]
    expect(unknown, "nothing went into the dead connection")
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return f"{len(unknown)} with an unknown outcome, the slowest after {longest:.1f} s; goes on"


def half_closed(arena: Arena) -> str:
    """The broker's side of the connections seems to have said goodbye."""
    profile = arena.profile
    assert isinstance(profile, BehindProxy)
    proxy = profile.proxy
    app = arena.app()
    worker = arena.worker(app)
    before, since = proxy.traffic.connections, time.monotonic()
    proxy.half_close("down")
    arena.wait(lambda: proxy.traffic.connections > before, "it to connect again", patience=30)
    noticed = proxy.accepted[before] - since
    expect(noticed < SLACK, f"noticed after {noticed:.1f} s only")
    arena.publish(app, 5, together=5)
    arena.wait(lambda: len(arena.history.completed) == 5, "messages to be delivered", patience=20)
    arena.wait_empty()
    expect(worker.alive, f"the worker ended:\n{worker.output[-2000:]}")
    arena.judge()
    return f"connected again after {noticed:.1f} s"


def slow(arena: Arena) -> str:
    """Publishing over a bad line that is cut now and then; what the broker got is counted."""
    profile, end, rounds = arena.profile, arena.gate("end"), arena.many(2)
    assert isinstance(profile, BehindProxy)
    proxy = profile.proxy
    app, history = arena.app(), arena.history
    publisher = arena.publisher(
        app,
        Publishing(count=1_000_000, callers=CALLERS, together=TOGETHER, patience=0.1, end=str(end)),
    )
    arena.wait(lambda: len(history.sent) >= 20, "some to be sent")
    for _ in range(rounds):
        proxy.delay(0.02, "up")
        proxy.delay(0.02, "down")
        proxy.limit(200_000, "up")
        _more(arena, 30)
        proxy.hold()
        held = time.monotonic()
        arena.wait(lambda held=held: time.monotonic() > held + 0.5, "packets to be lost a while")
        proxy.heal()
        _more(arena, 30)
        proxy.reset()
        _more(arena, 30)
    end.touch()
    arena.wait_exit(publisher)
    arena.look()
    stored = arena.waiting()
    copies = Counter(one.target for one in stored)
    extra = copies.total() - len(copies)
    expect(len(stored) <= len(history.intents) + extra, "the broker got more than was sent")
    expect(extra == 0, f"{extra} were published more than once, though each was sent once")
    unknown = sum(one.error != "NotConnectedError" for one in history.refused.values())
    at_once = CALLERS * TOGETHER
    expect(unknown <= rounds * at_once, f"{unknown} with an unknown outcome after {rounds} cuts")
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return (
        f"{len(history.intents)} tried over {rounds} cuts, {len(history.sent)} confirmed, "
        f"{unknown} unknown, {len(stored)} seen by the broker, none twice"
    )


def reconnects(arena: Arena) -> str:
    """Several workers lose their connections at the same moment."""
    profile, workers = arena.profile, 4
    assert isinstance(profile, BehindProxy)
    proxy = profile.proxy
    app = arena.app()
    for _ in range(workers):
        arena.worker(app)
    each = proxy.traffic.open // workers
    before, since = proxy.traffic.connections, time.monotonic()
    proxy.reset()
    arena.wait(lambda: proxy.traffic.connections >= before + workers * each, "all to connect again")
    arena.publish(app, 20, together=20)
    arena.wait(lambda: len(arena.history.completed) == 20, "messages to be delivered")
    arena.wait_empty()
    came = sorted(at - since for at in proxy.accepted[before : before + workers * each])
    spread = came[-1] - came[0]
    expect(spread > 0.02, f"all came back within {1000 * spread:.0f} ms of each other")
    again = proxy.traffic.connections - before
    expect(again <= 4 * workers * each, f"{again} connections for {workers} workers: a storm")
    arena.judge()
    return f"{workers * each} connections came back from {came[0]:.2f} s to {came[-1]:.2f} s after"


def _more(arena: Arena, count: int) -> None:
    enough = len(arena.history.sent) + count
    arena.wait(lambda: len(arena.history.sent) >= enough, "publishing to go on")
