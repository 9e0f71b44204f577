"""Publishes events from where there is no event loop: a task of Spark, or the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from matador.codec.json import JsonCodec
from matador.events.app import Matador, SyncMatador
from matador.events.loading import load_application
from matador.model.event import EventType
from matador.model.message import Once
from matador.model.sending import SendOptions, SendResult
from matador.transports.base import Deduplicating

T = TypeVar("T")


class Item(NamedTuple):
    """One event to be published."""

    event: EventType
    payload: Any
    options: SendOptions


class Publisher:
    """A started application that only sends. Used by one thread."""

    def __init__(self, app: Matador, running: SyncMatador) -> None:
        self._app = app
        self._running = running
        self.json = JsonCodec()

    @property
    def app(self) -> Matador:
        """The application."""
        return self._app

    def publish(self, items: Sequence[Item], once: Once) -> list[SendResult]:
        """Publish, each once as far as the transport can tell. What failed is in the results."""
        return self._running.wait(self._app.publish(items, once=once, send_errors="report"))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the application's event loop, and wait for what it returns."""
        return self._running.wait(coroutine)

    def seal(self, once: Once) -> None:
        """Let nothing more be published under ``once``, where the transport keeps count."""
        transport = self._app.transport
        if transport.capabilities.once and isinstance(transport, Deduplicating):
            self._running.wait(transport.seal(once))


@contextlib.contextmanager
def open_publisher(app: Matador | str) -> Generator[Publisher]:
    """Start the sending half of an application, given itself or by its reference.

    Raises:
        LifecycleError: it is running already, and cannot be opened a second time.
    """
    given = load_application(app).app if isinstance(app, str) else app
    producer = given.producer()
    with producer.sync() as running:
        yield Publisher(producer, running)
