"""What the in-process transport can do, and what it can be made without."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.model.capabilities import Capabilities, DeliveryMode
from matador.model.options import suggestion

Ability: TypeAlias = Literal[
    "delays",
    "priorities",
    "ordering",
    "browse",
    "purge",
    "depth",
    "replay",
    "once",
    "at-most-once",
]
"""What ``MemoryTransport(without=...)`` can do without."""


def capabilities(lease: float | None, without: Collection[Ability]) -> Capabilities:
    """All abilities but those taken away.

    Raises:
        ConfigurationError: something in ``without`` is not an ability.
    """
    for ability in without:
        if ability not in get_args(Ability):
            raise ConfigurationError(
                f"MemoryTransport: without={ability!r} is not an ability"
                f"{suggestion(ability, get_args(Ability))}"
            )
    modes: set[DeliveryMode] = {"at-least-once"}
    if "at-most-once" not in without:
        modes.add("at-most-once")
    return Capabilities(
        delivery_modes=frozenset(modes),
        delays="delays" not in without,
        dead_letters="native",
        attempt_tracking=True,
        concurrency="prefetch",
        ordering="none" if "ordering" in without else "partition",
        priorities="priorities" not in without,
        browse="browse" not in without,
        purge="purge" not in without,
        depth="depth" not in without,
        replay="replay" not in without,
        once="once" not in without,
        durable=False,
        in_process=True,
        lease=lease,
    )
