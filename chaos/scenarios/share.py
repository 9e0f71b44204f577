"""Share groups of Kafka: workers killed and the broker restarted, and nothing lost."""

from __future__ import annotations

from chaos.arena import Arena
from chaos.catalogue import Catalogue
from chaos.long_run import long_run
from chaos.profiles import HasShareGroups, Restarts
from chaos.progress import Progress

FEW, MANY = 1_000, 20_000


def add_to(catalogue: Catalogue) -> None:
    """Add this scenario."""
    catalogue.add(
        "share",
        "share groups: workers killed, the broker killed and restarted, none lost",
        HasShareGroups,
        Restarts,
    )(share_groups)


def share_groups(arena: Arena) -> str:
    """The long run on ``?groups=share``, smaller. A killed worker leaves locks behind."""
    assert isinstance(arena.profile, HasShareGroups)
    arena.profile.use_share_groups()
    small = arena.many(1) == 1
    progress = Progress()
    try:
        return long_run(
            arena,
            progress,
            messages=FEW if small else MANY,
            kills=2 if small else 10,
            restarts=1 if small else 3,
        )
    finally:
        progress.finish()
