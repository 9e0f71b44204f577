"""Workers that are asked to end: F5 and F6."""

from __future__ import annotations

from chaos.arena import Arena, changed, expect
from chaos.catalogue import Catalogue
from chaos.facts import now
from chaos.processes import Process
from chaos.settings import AppSettings, Handler

LEASE = 2.0


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F5", "SIGTERM under load: running callbacks finish, the rest goes back unused")(
        sigterm_under_load
    )
    catalogue.add("F6-signal", "a second SIGTERM: exits, nothing unfinished is acknowledged")(
        second_sigterm
    )
    catalogue.add("F6-timeout", "the timeout passes: the same")(timeout_passes)
    catalogue.add("F6-threads", "callbacks in threads that cannot be stopped: the same")(
        threads_do_not_stop
    )


def sigterm_under_load(arena: Arena) -> str:
    """Workers with more to do than they can are asked to end, one after the other."""
    count, rounds = arena.many(300), arena.many(2)
    app = arena.app(handlers=(Handler(seconds=0.02),))
    arena.publish(app, count, together=count)
    for _ in range(rounds):
        before = len(arena.starts())
        worker = arena.worker(app)
        arena.wait_started(before + 2 * app.concurrency)
        worker.terminate()
        asked = now()
        arena.wait_exit(worker)
        begun = arena.starts()
        late = sum(start.at > asked for start in begun)
        expect(late <= 4 * app.concurrency, f"{late} runs were started after SIGTERM")
        ends = [arena.history.end_of(start) for start in begun]
        finished = sum(end is not None and end.result == "done" for end in ends)
        expect(finished == len(begun), f"{len(begun)} runs were started, {finished} finished")
        left = arena.depth()
        expect(0 < left == count - len(begun), f"{left} of {count} left after {len(begun)} runs")
    arena.worker(app)
    arena.wait_empty()
    _expect_unused(arena)
    arena.judge()
    return f"{rounds} workers ended in good order; nothing that went back had been counted"


def second_sigterm(arena: Arena) -> str:
    """Callbacks that would wait for ever are cut short by a second signal."""
    app = _stuck(arena)
    worker = _holding(arena, app)
    worker.terminate()
    arena.wait(lambda: "SIGTERM: shutting down" in worker.output, "the first signal to be noticed")
    worker.terminate()
    seen = _left_behind(arena, app, worker, code=0)
    _expect_unused(arena)
    return seen


def timeout_passes(arena: Arena) -> str:
    """They are cut short by the timeout of the shutdown."""
    app = changed(_stuck(arena), shutdown_timeout=0.5)
    worker = _holding(arena, app)
    worker.terminate()
    seen = _left_behind(arena, app, worker, code=0)
    _expect_unused(arena)
    return seen


def threads_do_not_stop(arena: Arena) -> str:
    """Threads cannot be cut short: the process goes without them, and acknowledges nothing."""
    app = changed(_stuck(arena, blocking=True), shutdown_timeout=0.5)
    worker = _holding(arena, app)
    worker.terminate()
    return _left_behind(arena, app, worker, code=1)


def _stuck(arena: Arena, *, blocking: bool = False) -> AppSettings:
    handler = Handler(gate=str(arena.gate()), blocking=blocking)
    return arena.app(lease=LEASE, concurrency=4, handlers=(handler,))


def _holding(arena: Arena, app: AppSettings) -> Process:
    arena.publish(app, arena.many(12), together=arena.many(12))
    worker = arena.worker(app)
    arena.wait_started(app.concurrency)
    return worker


def _left_behind(arena: Arena, app: AppSettings, worker: Process, *, code: int) -> str:
    asked = now()
    arena.wait_exit(worker, code=code, patience=20)
    seconds = (now() - asked) / 1e9
    count = arena.many(12)
    expect(arena.depth() == count, f"{count - arena.depth()} unfinished ones were acknowledged")
    arena.gate().touch()
    arena.worker(app)
    arena.wait_empty()
    arena.judge()
    return f"exited in {seconds:.1f} s; all {count} were still there, and were handled afterwards"


def _expect_unused(arena: Arena) -> None:
    """What goes back uses up neither an attempt nor a delivery."""
    used = [start for start in arena.starts() if start.attempt > 1]
    expect(not used, f"{len(used)} had used up an attempt: {used[:3]}")
    again = [start for start in arena.starts() if start.redelivered]
    expect(not again, f"{len(again)} had used up a delivery: {again[:3]}")
