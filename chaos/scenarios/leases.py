"""Who owns a message, and for how long: F16, F17 and F20."""

from __future__ import annotations

from chaos.arena import Arena, changed, expect
from chaos.catalogue import Catalogue
from chaos.processes import Process
from chaos.settings import AppSettings, Handler

LEASE = 2.0
LEASES = 2.0
"""How many leases a long handler takes."""


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F16", "a handler longer than the lease: renewed, no second run")(long_handler)
    catalogue.add("F16-threads", "the same in threads")(long_handler_in_threads)
    catalogue.add("F17", "frozen past the lease, then resumed: its completion is fenced off")(
        frozen_and_resumed
    )
    catalogue.add("F17-once", "the same, not idempotent: dead-lettered, and not run twice")(
        frozen_and_not_idempotent
    )
    catalogue.add("F20", "delivered twice to a handler that is not idempotent: started once")(
        delivered_twice
    )


def long_handler(arena: Arena, *, blocking: bool = False) -> str:
    """A handler takes several leases while a second worker has nothing else to do."""
    handler = Handler(seconds=LEASES * LEASE, blocking=blocking)
    app = arena.app(lease=LEASE, handlers=(handler,))
    arena.publish(app, 6, together=6)
    arena.worker(app)
    arena.worker(app)
    arena.wait_empty()
    runs = len(arena.starts())
    expect(runs == 6, f"{runs} runs of 6 messages")
    arena.judge()
    return f"6 messages of {LEASES * LEASE:g} s each under a lease of {LEASE:g} s, 6 runs"


def long_handler_in_threads(arena: Arena) -> str:
    """The same with a sync handler."""
    return long_handler(arena, blocking=True)


def frozen_and_resumed(arena: Arena) -> str:
    """The frozen worker completes what another one has dead-lettered: the other one counts."""
    gate, broken = arena.gate(), arena.gate("broken")
    broken.touch()
    app = arena.app(lease=LEASE, handlers=(Handler(gate=str(gate)),))
    frozen = _freeze_holding(arena, app, 3)
    gate.touch()
    failing = Handler(broken=str(broken))
    arena.worker(changed(app, handlers=(failing,), max_attempts=1))
    arena.wait_empty()
    expect(arena.dead_numbers() == [0, 1, 2], f"dead: {arena.dead_numbers()}, not 0, 1 and 2")
    frozen.thaw()
    arena.wait(lambda: sum(arena.history.completed.values()) == 3, "the resumed handlers to return")
    _late_completions(arena, frozen)
    expect(arena.dead_numbers() == [0, 1, 2], "a late completion took a dead letter away")
    arena.judge()
    return "3 late completions without effect, 3 dead letters still there"


def frozen_and_not_idempotent(arena: Arena) -> str:
    """What the frozen worker may have done is not done again by another one."""
    gate = arena.gate()
    app = arena.app(lease=LEASE, handlers=(Handler(gate=str(gate), idempotent="no"),))
    frozen = _freeze_holding(arena, app, 3)
    gate.touch()
    arena.worker(app)
    arena.wait_empty()
    frozen.thaw()
    _late_completions(arena, frozen)
    return _dead_and_run_once(arena, 3)


def delivered_twice(arena: Arena) -> str:
    """A worker is killed inside a handler that must not run twice."""
    gate = arena.gate()
    app = arena.app(lease=LEASE, handlers=(Handler(gate=str(gate), idempotent="no"),))
    arena.publish(app, 3, together=3)
    victim = arena.worker(app)
    arena.wait_started(3)
    victim.kill()
    gate.touch()
    arena.worker(app)
    arena.wait_empty()
    return _dead_and_run_once(arena, 3)


def _freeze_holding(arena: Arena, app: AppSettings, count: int) -> Process:
    arena.publish(app, count, together=count)
    worker = arena.worker(app)
    arena.wait_started(count)
    worker.freeze()
    return worker


def _late_completions(arena: Arena, frozen: Process) -> None:
    """The resumed process is told that its completions came too late.

    Where there are no leases, they may go into a connection that is dead already: then it has to
    notice that, and to be of use again.
    """
    if arena.profile.leases:
        refused = lambda: frozen.output.count("was not settled") == 3  # noqa: E731
        arena.wait(refused, "3 completions to be refused")
    else:
        arena.wait(lambda: "is connected" in _since_lost(frozen), "it to connect again")
        expect(frozen.alive, f"it ended:\n{frozen.output[-2000:]}")


def _since_lost(frozen: Process) -> str:
    return frozen.output.partition("is reconnecting")[2]


def _dead_and_run_once(arena: Arena, count: int) -> str:
    runs = len(arena.starts())
    expect(runs == count, f"{runs} runs of {count} messages that must not run twice")
    expect(arena.dead_numbers() == list(range(count)), f"dead: {arena.dead_numbers()}")
    reasons = {one.reason for one in arena.dead_letters()}
    expect(all("not idempotent" in str(reason) for reason in reasons), f"reasons: {reasons}")
    arena.judge()
    return f"{count} messages, {runs} runs, dead-lettered: {reasons.pop()}"
