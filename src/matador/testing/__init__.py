"""What users and third-party transports test with.

``wait_for``, the makers and ``ManualClock`` need nothing else; ``TransportCompliance`` needs
pytest, which is imported when it is asked for (``pip install 'matador-events[testing]'``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matador.errors import MissingExtraError
from matador.testing.clock import ManualClock
from matador.testing.makers import (
    make_delivery,
    make_docket,
    make_envelope,
    make_message,
    make_receipt,
)
from matador.testing.wait import wait_for

if TYPE_CHECKING:
    from matador.testing.compliance import TransportCompliance

__all__ = [
    "ManualClock",
    "TransportCompliance",
    "make_delivery",
    "make_docket",
    "make_envelope",
    "make_message",
    "make_receipt",
    "wait_for",
]


def __getattr__(name: str) -> object:
    if name != "TransportCompliance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from matador.testing.compliance import TransportCompliance
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "pytest_asyncio"):
            raise
        raise MissingExtraError("matador.testing.TransportCompliance", "testing") from error
    return TransportCompliance
