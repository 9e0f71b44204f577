"""Queue services on every broker, with names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support.brokers import broker_url
from tests.support.kafka import Sweeper

from matador.channels import QueueService, QueueSettings, RetrySettings, Settings
from matador.channels.settings import DeadLetterQueueSettings, ShutdownSettings

BROKERS = [
    "memory",
    "sqlite",
    pytest.param("rabbitmq", marks=pytest.mark.broker),
    pytest.param("redis", marks=pytest.mark.broker),
    pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.xdist_group("kafka")]),
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

    def close(self, sweeper: Callable[[], Sweeper]) -> None:
        if self.kind == "kafka":
            sweeper().forget_with(f"-{self._unique}")


@pytest.fixture(scope="session")
def sweeper() -> Iterator[Callable[[], Sweeper]]:
    made: list[Sweeper] = []

    def get() -> Sweeper:
        if not made:
            made.append(Sweeper(broker_url("kafka")))
        return made[0]

    yield get
    for one in made:
        one.close()


@pytest.fixture(params=BROKERS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, sweeper: Callable[[], Sweeper]
) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path)
    yield made
    made.close(sweeper)


@pytest.fixture
def on(tmp_path: Path, sweeper: Callable[[], Sweeper]) -> Iterator[Callable[[str], Bench]]:
    """A bench on one broker."""
    made: list[Bench] = []

    def make(kind: str) -> Bench:
        made.append(Bench(kind, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close(sweeper)
