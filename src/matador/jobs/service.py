"""The base of queues and workers of jobs: a provider and events."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, get_args

from matador.errors import ConfigurationError
from matador.jobs.events import EVENT_NAMES, EventName, QueueErrored
from matador.jobs.options import OnUnsupported, Unsupported
from matador.jobs.provider import (
    JobProvider,
    ProviderLike,
    another_provider,
    provider_for,
    providers_with,
)
from matador.jobs.wire import sent_fact
from matador.model.message import ConnectionState, Message
from matador.model.options import Seconds, one_of, optional_seconds, set_fields, suggestion
from matador.model.subscriber import Idempotency
from matador.model.text import loggable
from matador.policy.dedup import Deduplication
from matador.policy.retry import RetryPolicy
from matador.runtime.checkpoints import CheckpointStore
from matador.runtime.deadline import Deadline
from matador.runtime.hooks import Hooks
from matador.runtime.service import Service
from matador.transports.base import Transport
from matador.transports.clock import Clock
from matador.transports.credentials import without_secrets

log = logging.getLogger("matador.jobs")

Listener: TypeAlias = Callable[[Any], object]
"""Receives the event. If it is async, it runs in a separate task."""

_MOST_UNREAD = 10_000
_ABILITIES = {
    "delay": "delays",
    "priority": "priorities",
    "remove_on_complete": "keep",
    "remove_on_fail": "keep",
    "job_id": "unique_ids",
}
"""The capabilities that options need, if their names differ."""
_INSTEAD = {"job_id": "a job is added again if its id is taken"}
"""What happens if an option is not supported, other than ignoring it."""


def check_queue_name(name: object, kind: str, argument: str) -> None:
    """Check the name of a queue.

    Raises:
        ConfigurationError: it is not a name, but an address, for example.
    """
    if not isinstance(name, str) or not name.strip():
        either = "a Queue or " if kind == "Worker" else ""
        raise ConfigurationError(
            f"[{kind}] {argument} must be {either}a non-empty string, got {name!r}"
        )
    if "://" in name:
        address = without_secrets(name)
        more = ", handler" if kind == "Worker" else ""
        raise ConfigurationError(
            f"[{kind}] the name of the queue comes first, got the address {address!r}; write "
            f'{kind}("name"{more}, provider="{address}")'
        )


@dataclass(frozen=True, slots=True, init=False)
class ReceivingOptions:
    """The options of a worker that were given. See ``Worker``."""

    retry: RetryPolicy | None
    timeout: float | None
    idempotent: Idempotency | None
    deduplication: Deduplication | None

    def __init__(
        self,
        retry: RetryPolicy | None,
        timeout: Seconds | None,
        idempotent: Idempotency | None,
        deduplication: Deduplication | None,
        *,
        where: str,
    ) -> None:
        if idempotent is not None:
            one_of(idempotent, f"{where} idempotent", get_args(Idempotency))
        if retry is not None and not callable(getattr(retry, "decide", None)):
            raise ConfigurationError(
                f"{where} retry must be a policy, like StandardRetryPolicy(max_attempts=3), "
                f"got {retry!r}"
            )
        if deduplication is not None and not isinstance(deduplication, Deduplication):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(
                f"{where} deduplication must be Deduplication(…), got {deduplication!r}"
            )
        set_fields(
            self,
            retry=retry,
            timeout=optional_seconds(timeout, f"{where} timeout"),
            idempotent=idempotent,
            deduplication=deduplication,
        )

    def otherwise(self, others: ReceivingOptions, where: str) -> ReceivingOptions:
        """These options, with those of ``others`` as defaults."""
        return ReceivingOptions(
            others.retry if self.retry is None else self.retry,
            others.timeout if self.timeout is None else self.timeout,
            others.idempotent if self.idempotent is None else self.idempotent,
            others.deduplication if self.deduplication is None else self.deduplication,
            where=where,
        )


class JobService(Service):
    """A queue or a worker of jobs.

    Args:
        where: its description for errors and logs.
        queue: the name of the queue.
        provider: the provider of the jobs.
        on_unsupported: called for each option that the provider cannot honor.
        hooks, connect_timeout: see ``Service``.
    """

    def __init__(
        self,
        where: str,
        queue: str,
        *,
        provider: ProviderLike | None,
        on_unsupported: OnUnsupported | None,
        hooks: Hooks | Sequence[Hooks] | None,
        connect_timeout: Seconds,
    ) -> None:
        super().__init__(where, None, hooks=hooks, connect_timeout=connect_timeout)
        if on_unsupported is not None and not callable(on_unsupported):
            raise ConfigurationError(
                f"{where} on_unsupported must be a function, got {on_unsupported!r}"
            )
        self.on_unsupported = on_unsupported
        self._name = queue
        self._given = provider
        self._provider = provider_for(provider, queue, where)
        self._disconnects = False
        self._reported: set[str] = set()
        self._listeners: dict[EventName, list[tuple[Listener, bool]]] = {}
        self._streams: list[asyncio.Queue[Any]] = []
        self._listening: set[asyncio.Task[None] | None] = set()

    # -- the provider -----------------------------------------------------------------------------

    def another(self) -> Self:
        other = super().another()
        other._connection = None
        other._provider = another_provider(self._provider, self._given, self._name, self._where)
        return other

    @property
    def given_transport(self) -> Transport | None:
        return self._provider.given

    def _rehost(self, transport: Transport, clock: Clock, checkpoints: CheckpointStore) -> None:
        self._given, self._provider, self._clock = transport, JobProvider(transport), clock

    @property
    def transport(self) -> Transport:
        """The transport of the provider."""
        return self._provided().transport

    def _provided(self) -> JobProvider:
        """The provider for this event loop."""
        return self._provider

    def _check(self) -> None:
        self._connection = self._provided()
        self._disconnects = False

    async def _disconnect(self, deadline: Deadline) -> None:
        if self._connection is not None:
            await self._connection.close(self, deadline, disconnect=self._disconnects)

    def _report_unsupported(self, option: str, value: Any, provider: str) -> None:
        """Report that an option is left out: once in the log, and each time to the callback."""
        able = providers_with(_ABILITIES.get(option, option))
        text = (
            f"{self._where} the provider {provider!r} does not support {option!r}: "
            f"{_INSTEAD.get(option, 'it is ignored')} (supported by {able})"
        )
        if option not in self._reported:
            self._reported.add(option)
            log.warning("%s (said once)", text)
        if self.on_unsupported is not None:
            found = Unsupported(queue=self._name, option=option, value=value, message=text)
            try:
                self.on_unsupported(found)
            except Exception:
                log.exception("%s on_unsupported raised an error", self._where)

    async def _tell_sent(self, jobs: Sequence[Message], transport: str) -> None:
        """Count jobs that were stored without the outbox, and report them to hooks."""
        self._counters.sent += len(jobs)
        if self._hooks.sent is not None and jobs:
            told = self._hooks.sent([sent_fact(one, self._name, transport) for one in jobs])
            if told is not None:
                await told

    # -- events -----------------------------------------------------------------------------------

    def on(self, event: EventName, listener: Listener) -> None:
        """Call ``listener`` with each event of that name.

        An exception of the listener is logged and becomes an ``error`` event. It does not affect
        jobs.

        Raises:
            ConfigurationError: there is no such event, or the listener is not callable.

        Example:
            >>> worker.on("failed", lambda event: print(event.job_id, event.error))
        """
        self._listen(event, listener)

    def once(self, event: EventName, listener: Listener) -> None:
        """Like ``on``, but only for the next event of that name.

        Example:
            >>> queue.once("drained", lambda event: print("all done"))
        """
        self._listen(event, listener, once=True)

    def off(self, event: EventName, listener: Listener) -> None:
        """Remove ``listener``. Ignores one that was not added.

        Example:
            >>> worker.off("failed", listener)
        """
        self._keep(event, [one for one in self._listeners.get(event, ()) if one[0] != listener])

    def events(self) -> AsyncIterator[Any]:
        """All events from now until the shutdown: ``async for event in worker.events()``.

        A reader that is too slow misses the oldest.

        Example:
            >>> async for event in worker.events():
            ...     print(event)
        """
        unread: asyncio.Queue[Any] = asyncio.Queue()
        self._streams.append(unread)
        self._heard()
        return self._read(unread)

    async def _read(self, unread: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        try:
            while (event := await unread.get()) is not None:
                yield event
        finally:
            if unread in self._streams:
                self._streams.remove(unread)

    def _listen(self, event: EventName, listener: Listener, *, once: bool = False) -> None:
        if event not in EVENT_NAMES:
            raise ConfigurationError(
                f"{self._where} there is no event {event!r} (there are: {', '.join(EVENT_NAMES)})"
                f"{suggestion(str(event), EVENT_NAMES)}"
            )
        if not callable(listener):
            raise ConfigurationError(f"{self._where} a listener must be callable, got {listener!r}")
        self._listeners.setdefault(event, []).append((listener, once))
        self._heard()

    def _keep(self, event: EventName, listeners: list[tuple[Listener, bool]]) -> None:
        self._listeners[event] = listeners
        if not listeners:
            del self._listeners[event]

    def _is_heard(self) -> bool:
        """Whether there are any listeners."""
        return bool(self._listeners or self._streams)

    def _heard(self) -> None:
        """Called when the first listener is added."""

    def _provider_failed(self, error: BaseException) -> None:
        self._emit("error", QueueErrored(queue=self._name, error=error))

    def _connection_state_changed(self, state: ConnectionState) -> None:
        super()._connection_state_changed(state)
        if state.error is not None and state.status in ("reconnecting", "failed"):
            self._provider_failed(state.error)

    def _emit(self, event: EventName, value: Any) -> None:
        """Call all listeners. Returns at once and never raises."""
        self._stream(value)
        for entry in list(self._listeners.get(event, ())):
            listener, once = entry
            if once:
                others = [one for one in self._listeners.get(event, ()) if one is not entry]
                self._keep(event, others)
            try:
                result = listener(value)
                if inspect.iscoroutine(result):
                    task = asyncio.create_task(self._finish(event, result))
                    self._listening.add(task)
                    task.add_done_callback(self._listening.discard)
            except Exception as error:  # noqa: BLE001 - reported
                self._listener_failed(event, error)

    def tell(self, event: EventName, value: Any) -> None:
        """Pass an event of a worker made with this queue to all listeners."""
        self._emit(event, value)

    def _stream(self, value: Any) -> None:
        for unread in self._streams:
            if unread.qsize() >= _MOST_UNREAD:
                unread.get_nowait()
            unread.put_nowait(value)

    async def _finish(self, event: EventName, call: Coroutine[Any, Any, object]) -> None:
        try:
            await call
        except Exception as error:  # noqa: BLE001 - reported
            self._listener_failed(event, error)

    def _listener_failed(self, event: EventName, error: Exception) -> None:
        log.error(
            "%s a listener of %r raised an error", self._where, event, exc_info=loggable(error)
        )
        if event != "error":
            self._emit("error", QueueErrored(queue=self._name, error=error))

    async def shutdown(self, timeout: Seconds | None = None, *, disconnect: bool = False) -> None:
        """``Service.shutdown``; with ``disconnect``, the provider is disconnected even if the
        caller gave it and others may use it."""
        self._listening.discard(asyncio.current_task())  # a listener does not wait for itself
        self._disconnects = self._disconnects or disconnect
        await super().shutdown(timeout)

    async def _close(self, deadline: Deadline) -> None:
        """Wait for async listeners for a while, and end the streams."""
        if listening := [task for task in self._listening if task is not None]:
            limit = min(deadline.left, self._shutdown_options.grace)
            _, late = await asyncio.wait(listening, timeout=limit)
            for task in late:
                log.warning("%s a listener has not finished and is canceled", self._where)
                task.cancel()
        self._stream(None)
        self._streams.clear()
