"""Test tools for users and third-party transports.

Each name is imported on first use: the pytest plugin lives in this package and is loaded in every
run of pytest, and all but ``TransportCompliance`` works without pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matador.testing.clock import ManualClock
    from matador.testing.compliance import TransportCompliance
    from matador.testing.harness import DeadLettered, Harness
    from matador.testing.makers import (
        make_context,
        make_delivery,
        make_docket,
        make_envelope,
        make_job,
        make_message,
        make_message_context,
        make_receipt,
        make_rpc_context,
    )
    from matador.testing.run import (
        AppHarness,
        ChannelHarness,
        JobHarness,
        PubSubHarness,
        RpcHarness,
        running,
    )
    from matador.testing.wait import wait_for

__all__ = [
    "AppHarness",
    "ChannelHarness",
    "DeadLettered",
    "Harness",
    "JobHarness",
    "ManualClock",
    "PubSubHarness",
    "RpcHarness",
    "TransportCompliance",
    "make_context",
    "make_delivery",
    "make_docket",
    "make_envelope",
    "make_job",
    "make_message",
    "make_message_context",
    "make_receipt",
    "make_rpc_context",
    "running",
    "wait_for",
]

_HOMES = {
    "make_message_context": "makers",
    "make_rpc_context": "makers",
    "make_job": "makers",
    "make_context": "makers",
    "RpcHarness": "run",
    "PubSubHarness": "run",
    "JobHarness": "run",
    "ChannelHarness": "run",
    "AppHarness": "run",
    "DeadLettered": "harness",
    "Harness": "harness",
    "ManualClock": "clock",
    "TransportCompliance": "compliance",
    "make_delivery": "makers",
    "make_docket": "makers",
    "make_envelope": "makers",
    "make_message": "makers",
    "make_receipt": "makers",
    "running": "run",
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
