"""Workers that die at the worst moment: F1 to F4."""

from __future__ import annotations

from collections import Counter

from chaos.arena import Arena, expect, numbers
from chaos.catalogue import Catalogue
from chaos.command_app import APPLICATION
from chaos.crew import Crew
from chaos.facts import Effect
from chaos.profiles import ReadsAhead
from chaos.settings import AppSettings, Handler
from matador.runtime.consumer import MOST_HELD

LEASE = 2.0


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F1", "killed inside a handler: redelivered after the lease, none lost")(
        killed_inside_a_handler
    )
    catalogue.add("F2", "killed after the effect, before the acknowledgement: one extra run")(
        killed_after_the_effect
    )
    catalogue.add("F2-once", "the same, idempotent=no: a dead letter, and no handler runs twice")(
        nothing_runs_again
    )
    catalogue.add("F2-steps", "steps that io() has done are not repeated")(steps_are_not_repeated)
    catalogue.add("F3", "killed in a storm of retries: none lost, none with two identities")(
        killed_in_a_storm_of_retries
    )
    catalogue.add("F4", "a message that kills its worker is dead-lettered, its neighbours are not")(
        poison
    )
    catalogue.add("F4-supervised", "the same under `matador worker --processes`")(
        poison_under_supervision
    )


def killed_inside_a_handler(arena: Arena) -> str:
    """Ten messages are being handled when their worker is killed."""
    gate, count = arena.gate(), arena.many(20)
    app = arena.app(lease=LEASE, handlers=(Handler(gate=str(gate)),))
    arena.publish(app, count, together=count)
    victim = arena.worker(app)
    arena.wait_started(app.concurrency)
    victim.kill()
    held = {start.seq: start for start in arena.starts()}
    gate.touch()
    arena.worker(app)
    arena.wait_empty()
    again = [start for start in arena.starts() if start.pid != victim.pid and start.seq in held]
    expect(sorted(numbers(again)) == sorted(held), "not each was redelivered once")
    expect(all(start.redelivered for start in again), "a redelivery did not say that it was one")
    soonest = min(start.at - held[start.seq].at for start in again) / 1e9
    early = arena.profile.leases and soonest < LEASE / 2
    expect(not early, f"redelivered after {soonest:.2f} s, before the lease had passed")
    arena.judge()
    return f"{len(held)} held by the dead worker, redelivered after {soonest:.1f} s or more"


def killed_after_the_effect(arena: Arena) -> str:
    """Handlers do their work, and their process is killed before it can say so."""
    count = arena.many(10)
    deadly = tuple(range(2, count, 4))
    app = arena.app(
        lease=LEASE, concurrency=1, handlers=(Handler(deadly=deadly, death="after-effect"),)
    )
    arena.publish(app, count, together=count)
    crew = Crew(arena, lambda: arena.worker(app, wait=False), 1)
    arena.wait(crew.is_done, "all to be handled")
    runs = Counter(numbers(arena.starts()))
    # Kafka commits a completion while the next message runs, so its neighbor may run again, too.
    neighbor = 2 if isinstance(arena.profile, ReadsAhead) else 1
    expect(
        all(runs[seq] == 2 if seq in deadly else runs[seq] <= neighbor for seq in range(count)),
        f"more than one extra run of those killed, or an extra run of others: {runs}",
    )
    expect(crew.deaths == len(deadly), f"{crew.deaths} deaths, not {len(deadly)}")
    arena.judge(duplicated=len(deadly) if neighbor == 1 else count)
    return f"{crew.deaths} deaths, one extra run each"


def nothing_runs_again(arena: Arena) -> str:
    """The same with handlers that must not run twice, on every broker."""
    count = arena.many(10)
    deadly = tuple(range(2, count, 4))
    app = arena.app(
        lease=LEASE,
        concurrency=1,
        handlers=(Handler(idempotent="no", deadly=deadly, death="after-effect"),),
    )
    arena.publish(app, count, together=count)
    crew = Crew(arena, lambda: arena.worker(app, wait=False), 1)
    arena.wait(crew.is_done, "all to be handled, or dead")
    runs = Counter(numbers(arena.starts()))
    again = {seq: times for seq, times in runs.items() if times > 1}
    expect(not again, f"a handler that must not run twice did: {again}")
    missing = set(deadly) - set(arena.dead_numbers())
    expect(not missing, f"killed, and not among the dead letters: {sorted(missing)}")
    arena.judge()
    return f"{crew.deaths} deaths, nothing ran again, {len(arena.dead_numbers())} dead letters"


def steps_are_not_repeated(arena: Arena) -> str:
    """The same with remembered steps: a second run takes their results from the store."""
    count = arena.many(8)
    deadly = tuple(range(1, count, 3))
    app = arena.app(
        lease=LEASE,
        concurrency=1,  # or a neighbour could be killed between its effect and its record
        checkpoints=str(arena.folder / "checkpoints.db"),
        handlers=(Handler(idempotent="resumable", steps=3, deadly=deadly, death="after-effect"),),
    )
    arena.publish(app, count, together=count)
    crew = Crew(arena, lambda: arena.worker(app, wait=False), 1)
    arena.wait(crew.is_done, "all to be handled")
    effects = Counter(
        (fact.seq, fact.step) for fact in arena.history.others if isinstance(fact, Effect)
    )
    repeated = {step: times for step, times in effects.items() if times > 1}
    expect(not repeated, f"steps that were done ran again: {repeated}")
    expect(len(effects) == 3 * count, f"{len(effects)} steps were done, not {3 * count}")
    arena.judge(duplicated=crew.deaths)
    return f"{crew.deaths} deaths, {len(effects)} steps, each done once"


def killed_in_a_storm_of_retries(arena: Arena) -> str:
    """Most runs fail and are retried at once, while workers are killed at random."""
    count, kills = arena.many(150), arena.many(3)
    app = arena.app(
        lease=LEASE,
        max_attempts=1000,
        max_deliveries=1000,
        base_delay=0.01,
        handlers=(Handler(failures=0.7),),
    )
    arena.publish(app, count, together=count)
    crew = Crew(arena, lambda: arena.worker(app, wait=False), 2)
    for kill in range(kills):
        share = count * (kill + arena.random.random()) / kills

        def storming(share: float = share) -> bool:
            crew.tend()
            return len(arena.history.completed) >= share

        arena.wait(storming, "the storm to go on")
        crew.kill_one()
    arena.wait(crew.is_done, "the storm to be over")
    retried = sum(start.attempt > 1 for start in arena.starts())
    expect(retried > count, f"only {retried} retries: no storm")
    arena.judge(duplicated=kills * 3 * max(app.concurrency, MOST_HELD))
    return f"{retried} retries, {kills} kills"


def poison(arena: Arena) -> str:
    """One message kills every worker it is given to."""
    bad, app = _publish_poison(arena)
    crew = Crew(arena, lambda: arena.worker(app, wait=False), 1)
    arena.wait(crew.is_done, "all to be handled, or dead")
    return _only_poison_died(arena, app, bad)


def poison_under_supervision(arena: Arena) -> str:
    """The same, with the product's own supervisor to start the next worker."""
    bad, app = _publish_poison(arena)
    supervisor = arena.command(app, "worker", APPLICATION, "--processes", "2")
    arena.wait_empty()
    seen = _only_poison_died(arena, app, bad)
    supervisor.terminate()
    arena.wait_exit(supervisor)
    return seen


def _publish_poison(arena: Arena) -> tuple[int, AppSettings]:
    count = arena.many(40)
    bad = count // 2
    handler = Handler(deadly=(bad,), always_deadly=True)
    app = arena.app(lease=LEASE, max_deliveries=4, handlers=(handler,))
    arena.publish(app, count, together=count)
    return bad, app


def _only_poison_died(arena: Arena, app: AppSettings, bad: int) -> str:
    dead = arena.dead_letters()
    expect(arena.dead_numbers() == [bad], f"dead: {arena.dead_numbers()}, and not {bad} alone")
    expect("possibly poisoned" in (dead[0].reason or ""), f"the reason is {dead[0].reason!r}")
    runs = len(arena.history.starts[bad, "handle"])
    expect(runs < app.max_deliveries, f"it ran {runs} times; max_deliveries counts before a run")
    neighbours = [target for target in arena.history.sent if target[0] != bad]
    expect(all(arena.history.completed[one] for one in neighbours), "a neighbour was not handled")
    arena.judge(duplicated=runs * 3 * max(app.concurrency, MOST_HELD))
    return f"{runs} deaths, then {dead[0].reason}"
