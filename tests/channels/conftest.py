"""Queue services on every broker, with names of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.brokers import broker_url

from matador.channels import QueueService, QueueSettings, RetrySettings, Settings
from matador.channels.settings import DeadLetterQueueSettings, ShutdownSettings

BROKERS = [
    "memory",
    "sqlite",
    pytest.param("rabbitmq", marks=pytest.mark.broker),
    pytest.param("redis", marks=pytest.mark.broker),
]


class Bench:
    """Makes services that meet on one broker. Names are of one test alone."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._unique = uuid4().hex[:8]

    def name(self, name: str = "orders") -> str:
        """The name of a channel that no other test has."""
        return f"{name}-{self._unique}"

    def queue(self, **options: object) -> QueueSettings:
        match self.kind:
            case "memory":
                given = {"type": "memory", "url": f"memory://?name=m{self._unique}"}
            case "sqlite":
                given = {"type": "sqlite", "url": f"sqlite:///{self._folder / 'queue.db'}"}
            case "redis":
                given = {"type": "redis", "url": broker_url("redis"), "mode": "stream"}
            case _:
                given = {"type": self.kind, "url": broker_url(self.kind)}
        return QueueSettings(**{**given, **options})  # pyright: ignore[reportArgumentType] - of a test

    def settings(self, **options: object) -> Settings:
        retry = options.pop("retry", RetrySettings(initial_delay=0.02))
        dead = options.pop("dead_letter_queue", DeadLetterQueueSettings())
        shutdown = options.pop("shutdown", ShutdownSettings(timeout=10))
        return Settings(self.queue(**options), retry, dead, shutdown)  # pyright: ignore[reportArgumentType] - of a test

    def service(self, *channels: object, **options: object) -> QueueService:
        return QueueService(self.settings(**options), channels=channels)


@pytest.fixture(params=BROKERS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path)


@pytest.fixture
def on(tmp_path: Path) -> Callable[[str], Bench]:
    """A bench on one broker."""
    return lambda kind: Bench(kind, tmp_path)
