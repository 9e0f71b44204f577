"""The bases of transports and subscriptions: what is the same in all of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from matador.errors import NotConnectedError, UnsupportedError
from matador.model.message import ConnectionState, Message
from matador.transports.base import TransportObserver


class BaseTransport(ABC):
    """A transport implements ``_open``, ``_close`` and the rest of ``Transport``.

    ``connect`` and ``disconnect`` never overlap. ``_open`` and ``_close`` report each state with
    ``_change_state``, or pass it to a ``ConnectionSupervisor`` as ``on_state``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = ConnectionState("disconnected")
        self._observers: list[TransportObserver] = []
        self._lifecycle = asyncio.Lock()

    @property
    def name(self) -> str:
        """See ``Transport``."""
        return self._name

    @property
    def state(self) -> ConnectionState:
        """See ``Transport``."""
        return self._state

    def observe(self, observer: TransportObserver) -> Callable[[], None]:
        """See ``Transport``."""
        entry = [observer]
        self._observers += entry

        def remove() -> None:
            if entry:
                _remove_one(self._observers, entry.pop())

        return remove

    async def connect(self) -> None:
        """See ``Transport``."""
        async with self._lifecycle:
            if self._state.status != "connected":
                await self._open()

    async def disconnect(self) -> None:
        """See ``Transport``."""
        async with self._lifecycle:
            if self._state.status != "disconnected":
                await self._close()

    @abstractmethod
    async def _open(self) -> None:
        """Connect; it is not connected now."""

    @abstractmethod
    async def _close(self) -> None:
        """Disconnect; it is connected, or tries to be, or failed to."""

    def _change_state(self, state: ConnectionState) -> None:
        self._state = state
        for observer in self._each_observer():
            observer.connection_changed(self._name, state)

    def _report_fallback(
        self, message: Message, failed: str, next_: str, error: BaseException
    ) -> None:
        for observer in self._each_observer():
            observer.fell_back(message, failed, next_, error)

    def _each_observer(self) -> Iterator[TransportObserver]:
        """Each once, however often it was added; one may be removed meanwhile."""
        return iter({id(observer): observer for observer in self._observers}.values())

    def _require_connected(self) -> None:
        """Raise ``NotConnectedError`` unless connected; the cause is why."""
        if self._state.status != "connected":
            raise NotConnectedError(
                f"the transport {self._name!r} is {self._state.status}; connect it first"
            ) from self._state.error

    def _require(self, able: object, ability: str) -> None:
        """Raise ``UnsupportedError`` unless ``able``, ``NotConnectedError`` unless connected."""
        if not able:
            raise UnsupportedError(f"the transport {self._name!r} does not support {ability}")
        self._require_connected()


class BaseSubscription:
    """The name and the state of a subscription. ``receive`` and ``close`` are left to it."""

    def __init__(self, queue: str) -> None:
        self._queue_name = queue
        self._active = True

    @property
    def queue(self) -> str:
        """See ``Subscription``."""
        return self._queue_name

    @property
    def active(self) -> bool:
        """See ``Subscription``."""
        return self._active


def _remove_one(observers: list[TransportObserver], observer: TransportObserver) -> None:
    for place, one in enumerate(observers):
        if one is observer:
            del observers[place]
            return
