"""Every public function and method of jobs, RPC, pub/sub and channels shows how it is used."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NOT_FOR_USERS = {
    "another": "for the blocking form",
    "connection_changed": "called by transports",
    "dropped": "called by transports",
    "fell_back": "called by transports",
    "refuse_in_loop": "for the blocking forms",
    "rehosted": "for matador.testing",
    # of jobs
    "here": "for tools",
    "provider_here": "for tools",
    "unsupported": "for tools",
    "tell": "for workers",
    "keep_declared": "for workers",
    "add_schedule": "for schedules: users call ``job.schedule``",
    "check_recurring": "for schedules",
    "check_data": "for edits of dead letters",
    "add_to": "for flows: users call ``add``",
    "add_flow": "for flows: users call ``chain`` and ``group``",
    "add_stored": "for replays",
    "read_result": "for handles",
    "DeclaredJob.on": "for the blocking form",
    "JobHandle.on": "for the blocking form",
    "SyncJobHandle.wait": "for the blocking form",
    "Keep.of": "for queues",
    "Keep.read": "for transports",
    "Connection.open": "for services",
    "Connection.apply": "for services",
    "Connection.close": "for services",
}
"""Names of methods, or classes and methods, and who calls them."""


def methods_of(kind: type[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, inherited ones included, that Matador defines."""
    for name in dir(kind):
        found: Any = inspect.getattr_static(kind, name)
        found = getattr(found, "__func__", found)  # of a class method
        if not inspect.isfunction(found) or not found.__module__.startswith("matador."):
            continue
        internal = not NOT_FOR_USERS.keys().isdisjoint((name, found.__qualname__))
        if not internal and not name.startswith("_"):
            yield f"{found.__module__}.{found.__qualname__}", found


def public_callables(package: str) -> dict[str, Callable[..., Any]]:
    module = importlib.import_module(f"matador.{package}")
    found: dict[str, Callable[..., Any]] = {}
    for name in module.__all__:
        public = getattr(module, name)
        if inspect.isclass(public):
            found |= methods_of(public)
        elif inspect.isfunction(public):
            found[f"{package}.{name}"] = public
    return found


@pytest.mark.parametrize(
    ("package", "at_least"), [("jobs", 60), ("rpc", 30), ("pubsub", 25), ("channels", 25)]
)
def test_every_public_method_has_an_example(package: str, at_least: int) -> None:
    found = public_callables(package)
    assert len(found) >= at_least, "the test looks at too little"
    without = [name for name, one in found.items() if ">>>" not in (inspect.getdoc(one) or "")]
    assert not without, "\n".join([f"{len(without)} have no example:", *sorted(without)])
