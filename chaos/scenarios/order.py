"""Messages with one ordering key: one at a time and in order, whatever happens to their workers."""

from __future__ import annotations

from collections.abc import Callable

from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.processes import Process
from chaos.profiles import Unplayable
from chaos.settings import Handler, Publishing
from matador.runtime.consumer import MOST_HELD

LEASE = 3.0
CONCURRENCY = 8
KEYS = 200
FAILURES = 0.05
FEW, MANY = 1_000, 50_000
_PATIENCE = 1800.0


def add_to(catalogue: Catalogue) -> None:
    """Add this scenario."""
    catalogue.add(
        "order", "order by key through 8 handlers a worker, retries, and workers that come and go"
    )(order_by_key)


def order_by_key(arena: Arena) -> str:
    """A second worker joins, the first leaves in good order, a third joins, the second is killed.

    Each of them has the messages shared out anew, while others are on their way and one in twenty
    runs fails.
    """
    if not arena.profile.ordered:
        raise Unplayable("it does not keep the order of keys")
    count = FEW if arena.many(1) == 1 else MANY
    app = arena.app(
        lease=LEASE,
        concurrency=CONCURRENCY,
        max_attempts=1000,
        max_deliveries=1000,
        # Few messages last until each of the workers has had its share.
        handlers=(Handler(failures=FAILURES, seconds=0.05 if count == FEW else 0.0),),
    )
    publisher = arena.publisher(app, Publishing(count=count, keys=KEYS, together=50))
    completed = arena.history.completed
    handled: Callable[[float], Callable[[], bool]] = lambda part: (  # noqa: E731
        lambda: len(completed) >= part * count
    )

    first = arena.worker(app)
    arena.wait(handled(0.2), "a fifth to be handled", patience=_PATIENCE)
    second = arena.worker(app)
    arena.wait(handled(0.4), "two fifths to be handled", patience=_PATIENCE)
    first.terminate()
    arena.wait_exit(first)
    arena.wait(handled(0.6), "three fifths to be handled", patience=_PATIENCE)
    third = arena.worker(app)
    arena.wait(handled(0.8), "four fifths to be handled", patience=_PATIENCE)
    second.kill()
    sent = count
    arena.wait_exit(publisher)  # whoever sends to the same keys comes after it
    while not _has_share(arena, third) and sent < 20 * count:  # it was slow to start
        arena.publish(app, KEYS, first=sent, keys=KEYS, together=50)
        sent += KEYS
        arena.wait(handled(sent / count), "some more to be handled", patience=_PATIENCE)
    arena.wait(handled(1.0), "all to be handled", patience=_PATIENCE)
    arena.wait_empty()
    workers = {start.pid for start in arena.starts()}
    expect(third.alive, f"the third worker ended:\n{third.output[-2000:]}")
    expect(len(workers) == 3, f"{len(workers)} workers had a share, not 3")
    # What the one that was killed had done, and not yet committed: what it holds by reading ahead,
    # and twice as much that waits to be settled.
    verdict = arena.judge(duplicated=3 * max(CONCURRENCY, MOST_HELD))
    runs = len(arena.starts())
    return (
        f"{sent:,} messages with {KEYS} keys in {runs:,} runs by {len(workers)} workers; "
        f"{verdict.duplicated} done twice"
    )


def _has_share(arena: Arena, worker: Process) -> bool:
    return any(start.pid == worker.pid for start in arena.starts())
