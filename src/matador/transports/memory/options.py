"""The options of the in-process transport, and the capabilities that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.model.capabilities import Capabilities, DeliveryMode
from matador.model.options import suggestion
from matador.transports.kit.options import Options, duration, option, text
from matador.transports.kit.properties import ALL_PROPERTIES

Ability: TypeAlias = Literal[
    "delays",
    "priorities",
    "ordering",
    "browse",
    "purge",
    "depth",
    "pause",
    "replay",
    "once",
    "at-most-once",
    "properties",
    "routing",
    "jobs",
]
"""The abilities that ``MemoryTransport(without=...)`` can turn off."""


def _check_abilities(given: Any, what: str) -> frozenset[str]:
    known = get_args(Ability)
    for ability in given:
        if ability not in known:
            raise ConfigurationError(
                f"{what}: {ability!r} is not an ability{suggestion(str(ability), known)}"
            )
    return frozenset(given)


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """See ``MemoryTransport``; in an address: ``memory://?lease=5&without=delays,browse``."""

    kind = "MemoryTransport"

    name: str = text("memory", empty=False)
    lease: float | None = duration(None, minimum=0.001)
    without: Collection[Ability] = option(
        frozenset(), lambda written, _: written.split(","), _check_abilities
    )

    def capabilities(self) -> Capabilities:
        """All abilities except those turned off."""
        without = self.without
        modes: list[DeliveryMode] = ["at-least-once", "at-most-once"]
        return Capabilities(
            delivery_modes=frozenset(mode for mode in modes if mode not in without),
            delays="delays" not in without,
            dead_letters="native",
            attempt_tracking=True,
            concurrency="prefetch",
            ordering="none" if "ordering" in without else "partition",
            priorities="priorities" not in without,
            browse="browse" not in without,
            purge="purge" not in without,
            depth="depth" not in without,
            pause="pause" not in without,
            replay="replay" not in without,
            once="once" not in without,
            properties=frozenset() if "properties" in without else ALL_PROPERTIES,
            routing="routing" not in without,
            jobs="jobs" not in without,
            durable=False,
            in_process=True,
            lease=self.lease,
        )
