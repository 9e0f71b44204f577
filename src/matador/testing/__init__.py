"""What users and third-party transports test with.

Each name is imported when it is asked for: the pytest plugin lives in this package and is loaded in
every run of pytest, and all but ``TransportCompliance`` works without pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matador.testing.clock import ManualClock
    from matador.testing.compliance import TransportCompliance
    from matador.testing.harness import DeadLettered, Harness, running
    from matador.testing.makers import (
        make_delivery,
        make_docket,
        make_envelope,
        make_message,
        make_receipt,
    )
    from matador.testing.wait import wait_for

__all__ = [
    "DeadLettered",
    "Harness",
    "ManualClock",
    "TransportCompliance",
    "make_delivery",
    "make_docket",
    "make_envelope",
    "make_message",
    "make_receipt",
    "running",
    "wait_for",
]

_HOMES = {
    "DeadLettered": "harness",
    "Harness": "harness",
    "ManualClock": "clock",
    "TransportCompliance": "compliance",
    "make_delivery": "makers",
    "make_docket": "makers",
    "make_envelope": "makers",
    "make_message": "makers",
    "make_receipt": "makers",
    "running": "harness",
    "wait_for": "wait",
}

if not TYPE_CHECKING:  # a type checker should know the names above, and only those

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in ("pytest", "pytest_asyncio"):
                raise
            from matador.errors import MissingExtraError

            raise MissingExtraError(f"{__name__}.{name}", "testing") from error
