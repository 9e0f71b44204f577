"""Trouble with the disk: F14 and F15."""

from __future__ import annotations

from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.profiles import FillsUp
from chaos.settings import Publishing

MIB = 1 << 20


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F14", "the disk is full: refused, nothing damaged, goes on with room", FillsUp)(
        disk_full
    )
    catalogue.add("F15", "senders killed at any instant: all that was reported sent is there")(
        senders_killed
    )


def disk_full(arena: Arena) -> str:
    """A publisher and a worker live through a full disk, and go on when there is room."""
    profile = arena.profile
    assert isinstance(profile, FillsUp)
    profile.limit_room(4 * MIB)
    app = arena.app()
    count = arena.many(1500)
    publisher = arena.publisher(app, Publishing(count=count, callers=4, size=4000, patience=0.05))
    history = arena.history
    arena.wait(lambda: len(history.refused) >= 10, "the disk to be full")
    worker = arena.worker(app, wait=False)  # it can neither open nor claim anything as yet
    arena.wait(lambda: len(history.refused) >= 30, "more to be refused")
    damage = profile.damage()
    expect(damage is None, f"damaged while full: {damage}")
    stored, sent_before = arena.depth(), len(history.sent)
    expect(stored >= sent_before, f"{sent_before} reported as sent, {stored} there")
    expect(publisher.alive, "the publisher did not live through it")

    profile.make_room(64 * MIB * max(1, arena.many(1)))
    arena.wait_exit(publisher)
    errors = {refused.error for refused in history.refused.values()}
    expect(errors == {"StorageFullError"}, f"refused with {errors}")
    expect(len(history.sent) > sent_before, "nothing could be sent after there was room")
    if not worker.alive:
        expect("StorageFullError" in worker.output, f"the worker ended:\n{worker.output[-2000:]}")
        arena.worker(app)
    arena.wait_empty()
    verdict = arena.judge()
    return f"{len(history.refused)} refused, {verdict.published} sent, {verdict.handled} handled"


def senders_killed(arena: Arena) -> str:
    """Publishers with many calls at once are killed at random, one after the other."""
    app, first = arena.app(), 0
    history = arena.history
    kills = arena.many(4)
    for _ in range(kills):
        publishing = Publishing(first=first, count=1_000_000, callers=8, size=1500)
        publisher = arena.publisher(app, publishing)
        enough = len(history.sent) + arena.random.randint(1, 200)
        arena.wait(lambda enough=enough: len(history.sent) >= enough, "some to be sent")
        publisher.kill()
        arena.look()
        first = max(history.intents) + 1
        there = {(one.target, one.id) for one in arena.waiting()}
        missing = [target for target, one in history.sent.items() if (target, one.id) not in there]
        expect(not missing, f"{len(missing)} reported as sent are not there: {missing[:5]}")
        damage = arena.profile.damage()
        expect(damage is None, f"damaged by a kill: {damage}")
    unknown = len(history.intents) - len(history.sent)
    arena.worker(app)
    arena.wait_empty()
    verdict = arena.judge()
    return f"{kills} kills, {verdict.published} reported as sent, {unknown} without an outcome"
