"""The base classes of transports and subscriptions."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from matador.errors import UnsupportedError
from matador.model.message import ConnectionState, Message
from matador.transports.base import TransportObserver

log = logging.getLogger("matador.transport")


class BaseTransport(ABC):
    """A transport implements ``_open``, ``_close`` and the rest of ``Transport``.

    ``connect`` and ``disconnect`` never overlap. ``_open`` and ``_close`` report each state with
    ``_change_state``, or pass it to a ``ConnectionSupervisor`` as ``on_state``.
    """

    def __init__(self, name: str) -> None:
        self.shared: dict[type[Any], Any] = {}  # see ``Replying``
        self._name = name
        self._state = ConnectionState("disconnected")
        self._trouble = ""
        self._observers: list[TransportObserver] = []
        self._lifecycle = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def state(self) -> ConnectionState:
        return self._state

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        entry = [observer]
        self._observers += entry

        def remove() -> None:
            if entry:
                _remove_one(self._observers, entry.pop())

        return remove

    async def connect(self) -> None:
        async with self._lifecycle:
            if self._state.status != "connected":
                await self._open()

    async def disconnect(self) -> None:
        async with self._lifecycle:
            if self._state.status != "disconnected":
                await self._close()

    @abstractmethod
    async def _open(self) -> None:
        """Connect. Called only while disconnected."""

    @abstractmethod
    async def _close(self) -> None:
        """Disconnect. Called while connected, while connecting, and after a failed attempt."""

    def _change_state(self, state: ConnectionState) -> None:
        self._state = state
        self._log_state(state)
        for observer in self._each_observer():
            observer.connection_changed(self._name, state)

    def _log_state(self, state: ConnectionState) -> None:
        """Log each state once, however many observers there are, and an outage once per reason."""
        said, trouble = str(state), state.status in ("reconnecting", "failed")
        again = said == self._trouble or (state.status == "connecting" and self._trouble)
        level = logging.WARNING if trouble else logging.INFO
        log.log(logging.DEBUG if again else level, "%s is %s", self._name, said)
        if state.status != "connecting":
            self._trouble = said if trouble else ""

    def _report_fallback(
        self, message: Message, failed: str, next_: str, error: BaseException
    ) -> None:
        log.warning("%s failed, %s takes %s: %s", failed, next_, message.id, error)
        for observer in self._each_observer():
            observer.fell_back(message, failed, next_, error)

    def _report_dropped(self, queue: str, number: int) -> None:
        for observer in self._each_observer():
            observer.dropped(queue, number)

    def _each_observer(self) -> Iterator[TransportObserver]:
        """Each observer once, however often it was added. Observers may be removed meanwhile."""
        return iter({id(observer): observer for observer in self._observers}.values())

    def _require_connected(self) -> None:
        """Raise ``NotConnectedError`` unless connected; its cause is the connection error."""
        if self._state.status != "connected":
            raise self._state.refusal(
                f"the transport {self._name!r} is {self._state.status}; connect it first"
            )

    def _require(self, able: object, ability: str) -> None:
        """Raise ``UnsupportedError`` unless ``able``, ``NotConnectedError`` unless connected."""
        if not able:
            raise UnsupportedError(f"the transport {self._name!r} does not support {ability}")
        self._require_connected()


class BaseSubscription:
    """The name and state of a subscription. Subclasses implement ``receive`` and ``close``."""

    def __init__(self, queue: str) -> None:
        self._queue_name = queue
        self._active = True

    @property
    def queue(self) -> str:
        return self._queue_name

    @property
    def active(self) -> bool:
        return self._active


def _remove_one(observers: list[TransportObserver], observer: TransportObserver) -> None:
    for place, one in enumerate(observers):
        if one is observer:
            del observers[place]
            return
