"""Passes reports of a transport on to the hooks, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from matador.events.hooks import ConnectionChange, HookSet, TransportFallback
from matador.model.message import ConnectionState, Message

log = logging.getLogger("matador.transport")


class TransportListener:
    """A ``TransportObserver`` that logs reports and calls the hooks, which may be async."""

    def __init__(self, hooks: HookSet) -> None:
        self._hooks = hooks
        self._last: asyncio.Task[None] | None = None

    def connection_changed(self, transport: str, state: ConnectionState) -> None:
        """See ``TransportObserver``."""
        because = f": {state.error}" if state.error is not None else ""
        level = logging.WARNING if state.status in ("reconnecting", "failed") else logging.INFO
        log.log(level, "%s is %s%s", transport, state.status, because)
        hook = self._hooks.on_connection_state_change
        if hook is not None:
            self._call(hook(ConnectionChange(transport, state)))

    def fell_back(self, message: Message, failed: str, next_: str, error: BaseException) -> None:
        """See ``TransportObserver``."""
        log.warning("%s failed, %s takes %s: %s", failed, next_, message.id, error)
        hook = self._hooks.on_transport_fallback
        if hook is not None:
            self._call(hook(TransportFallback(message.id, message.queue, failed, next_, error)))

    async def drain(self) -> None:
        """Wait until every hook has been called."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)
            self._last = None  # the next task may belong to another loop

    def _call(self, hook: Awaitable[None]) -> None:
        before = self._last

        async def call() -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await hook

        self._last = asyncio.create_task(call())
