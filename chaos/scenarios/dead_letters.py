"""Dead letters: sent back in spite of kills, and what happens when they cannot be stored."""

from __future__ import annotations

from chaos.application import NAMESPACE
from chaos.arena import Arena, expect
from chaos.catalogue import Catalogue
from chaos.command_app import APPLICATION
from chaos.facts import now
from chaos.profiles import RefusesDeadLetters
from chaos.settings import Handler
from matador.model.topology import dead_letter_name

LEASE = 2.0
REDRIVEN_TOGETHER = 100
"""How many a redrive moves at once."""

DEAD = dead_letter_name(f"{NAMESPACE}.events", "undeliverable")


def add_to(catalogue: Catalogue) -> None:
    """Add these scenarios."""
    catalogue.add("F25", "mass failure, then a redrive that is killed: resumes without repeats")(
        redrive_killed
    )
    catalogue.add("F26", "a dead letter cannot be stored: the original stays", RefusesDeadLetters)(
        dead_letters_refused
    )


def redrive_killed(arena: Arena) -> str:
    """Everything fails; then it is mended, and the redrive is killed on its way, twice."""
    broken, count = arena.gate("broken"), arena.many(2400)
    broken.touch()
    app = arena.app(lease=LEASE, max_attempts=1, handlers=(Handler(broken=str(broken)),))
    arena.publish(app, count, together=100)
    arena.worker(app)
    dead = lambda: arena.profile.depth(DEAD)  # noqa: E731 - a name for what is looked at often
    arena.wait(lambda: dead() == count, "all to have failed")
    broken.unlink()
    kills = 0
    for _ in range(2):
        enough = arena.random.randint(1, dead() // 4)  # a redrive is fast
        before = dead()
        redrive = arena.command(app, "dead-letters", "redrive", APPLICATION, "--all", "--yes")
        arena.wait(
            lambda before=before, enough=enough: dead() <= before - enough,
            "some to be sent back",
        )
        kills += redrive.alive
        redrive.kill()
    left = dead()
    expect(kills and left, f"{kills} redrives were killed on their way, {left} were left")
    arena.wait_exit(arena.command(app, "dead-letters", "redrive", APPLICATION, "--all", "--yes"))
    arena.wait_empty()
    expect(dead() == 0, f"{dead()} are still dead")
    repeats = len(arena.starts()) - 2 * count
    # Where a move takes two steps, a kill between them leaves the message in both places.
    most = 0 if arena.profile.atomic else kills * REDRIVEN_TOGETHER
    expect(0 <= repeats <= most, f"{repeats} repeats: each fails once, and runs once more")
    arena.judge(duplicated=most)
    return f"{count} dead letters, {kills} redrives killed with {left} left, {repeats} run twice"


def dead_letters_refused(arena: Arena) -> str:
    """Messages fail for good while no dead letter can be stored."""
    profile, broken, gate = arena.profile, arena.gate("broken"), arena.gate()
    assert isinstance(profile, RefusesDeadLetters)
    broken.touch()
    app = arena.app(
        lease=LEASE,
        max_attempts=1,
        handlers=(
            Handler(broken=str(broken), gate=str(gate)),
            Handler(name="other", queue="other"),
        ),
    )
    arena.publish(app, 5, together=5)
    worker = arena.worker(app)
    arena.wait_started(10)
    profile.refuse_dead_letters()
    gate.touch()
    since = now()
    arena.wait(lambda: now() - since > 1.5e9 * LEASE, "more than a lease to pass")
    expect("could not settle" in worker.output, "nobody said that they could not be settled")
    expect(not arena.dead_letters(), "there are dead letters")
    left = arena.profile.depth(f"{NAMESPACE}.events")
    expect(left == 5, f"left are {left}, not 5")
    runs = len(arena.starts())
    expect(runs == 10, f"{runs} runs of 10 messages while their outcome could not be stored")
    profile.accept_dead_letters()
    arena.wait_empty()
    expect(arena.dead_numbers() == list(range(5)), f"dead: {arena.dead_numbers()}")
    expect(len(arena.starts()) == 10, "they were run again")
    arena.judge()
    said = worker.output.count("could not settle")
    return f"5 stayed for {1.5 * LEASE:g} s, then died in good order; said so {said} times"
