"""Runs an application in memory, with a clock that the test moves, and records what it did."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from matador.errors import ConfigurationError, TimeoutError
from matador.events.app import Matador
from matador.events.checkpoints import CheckpointStore, MemoryCheckpointStore
from matador.events.hooks import (
    DecodeFailure,
    EnqueueError,
    EnqueueSuccess,
    Hooks,
    Processing,
    WorkerError,
    WorkerSuccess,
)
from matador.model.capabilities import Capabilities
from matador.model.envelope import Envelope
from matador.model.options import Seconds, suggestion
from matador.model.schema import Schema
from matador.model.sending import SendResult
from matador.model.subscriber import AnySubscriber, SubscriberStub
from matador.model.topology import DeadLetterKind, Topology
from matador.policy.retry import SendToDeadLetters
from matador.testing.clock import ManualClock
from matador.testing.wait import wait_for
from matador.transports.memory import MemoryTransport

_LAST_CALLBACKS = 1.0


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message that became a dead letter during the test.

    Attributes:
        kind: ``undeliverable`` or ``unhandled``.
        reason: why.
        queue: the full name of the work queue it came from.
        error: what was raised.
        envelope: the message; None if its bytes are not an envelope.
        body: its bytes, if they are not an envelope.
    """

    kind: DeadLetterKind
    reason: str
    queue: str
    error: BaseException
    envelope: Envelope[Any] | None = None
    body: bytes | None = None


class Harness:
    """An application that runs in memory. Made by ``running``.

    Attributes:
        app: the application; code under test can use it as usual.
        transport: the in-process transport it runs on, for inspection.
        clock: its clock, which stands still until the test moves it.
    """

    def __init__(
        self, app: Matador, transport: MemoryTransport, clock: ManualClock, record: Record
    ) -> None:
        self.app = app
        self.transport = transport
        self.clock = clock
        self._record = record

    @property
    def sent(self) -> list[Envelope[Any]]:
        """Every envelope that was stored, in order."""
        return list(self._record.sent)

    @property
    def send_errors(self) -> list[EnqueueError]:
        """Every envelope that could not be stored, and why."""
        return list(self._record.send_errors)

    async def send(self, *payload: Any, **options: Any) -> SendResult:
        """``app.send``; raises what failed, whatever the application's ``send_errors``."""
        return (await self.app.send(*payload, **options)).raise_for_errors()

    def handled(self, subscriber: str | AnySubscriber | None = None) -> list[Envelope[Any]]:
        """The messages that one subscriber, or all of them, handled, in order of completion.

        Raises:
            ConfigurationError: unknown subscriber; a typo must not make a test pass.
        """
        name = self._name(subscriber)
        return [one.envelope for one in self._record.handled if _is_of(one.envelope, name)]

    def results(self, subscriber: str | AnySubscriber | None = None) -> list[Any]:
        """What the callbacks returned, in order of completion."""
        name = self._name(subscriber)
        return [one.result for one in self._record.handled if _is_of(one.envelope, name)]

    def failed(self, subscriber: str | AnySubscriber | None = None) -> list[WorkerError]:
        """Every failed attempt, with its ``envelope``, ``error`` and ``decision``."""
        name = self._name(subscriber)
        return [one for one in self._record.failed if _is_of(one.envelope, name)]

    def dead_letters(
        self, subscriber: str | AnySubscriber | None = None, *, kind: DeadLetterKind | None = None
    ) -> list[DeadLettered]:
        """The dead letters of one subscriber or of all."""
        name = self._name(subscriber)
        return [
            one
            for one in self._record.dead_letters
            if kind in (None, one.kind)
            and (name is None or (one.envelope is not None and _is_of(one.envelope, name)))
        ]

    def raise_errors(self) -> None:
        """Raise the error of the first failed attempt, if any: for tests that expect none."""
        for failure in self._record.failed:
            raise failure.error
        for letter in self._record.dead_letters:
            raise letter.error

    async def drain(self, *, delayed: bool = True, timeout: float = 5.0) -> None:
        """Wait until all messages in the consumed queues are handled.

        Does not wait for retries and delayed messages: it moves the clock until each of them is
        due. With ``delayed=False`` they stay in their queues. Queues that the application does not
        consume are left alone.

        Raises:
            TimeoutError: after ``timeout`` real seconds; says what is left.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await wait_for(self._is_quiet, timeout=2 * timeout + 1)
                    due = self._next_due() if delayed else None
                    if due is None:
                        return
                    # A little more: a time of day has a precision of one microsecond.
                    self.clock.advance((due - self.clock.now()).total_seconds() + 0.000_001)
        except builtins.TimeoutError as error:
            raise TimeoutError(
                f"not all messages were handled within {timeout:g} s; "
                f"still there: {await self._left()}"
            ) from error

    async def advance(self, by: Seconds, *, timeout: float = 5.0) -> None:
        """Move the clock, and wait until everything that is then due is handled."""
        await self.drain(delayed=False, timeout=timeout)
        self.clock.advance(by)
        await self.drain(delayed=False, timeout=timeout)

    # -- inside -----------------------------------------------------------------------------------

    @property
    def _queues(self) -> list[str]:
        return [self.app.topology.full_name(name) for name in self.app.consume_from]

    async def _is_quiet(self) -> bool:
        if not self.app.state.is_idle:
            return False
        depths = [await self.transport.depth(queue) for queue in self._queues]
        return all(depth.ready == 0 and depth.in_flight == 0 for depth in depths)

    def _next_due(self) -> datetime | None:
        waiting = (one for queue in self._queues for one in self.transport.messages(queue))
        return min((one.due_at for one in waiting if one.due_at is not None), default=None)

    async def _left(self) -> str:
        left: list[str] = []
        for queue in self._queues:
            depth = await self.transport.depth(queue)
            states = {"ready": depth.ready, "in flight": depth.in_flight, "delayed": depth.delayed}
            left += [f"{count} {state} in {queue}" for state, count in states.items() if count]
        left += [f"{name} is still running" for name in sorted(self._record.running.values())]
        if self.app.state.enqueuing:
            left.append(f"{self.app.state.enqueuing} being sent")
        return ", ".join(left) or "nothing now"

    def _name(self, subscriber: str | AnySubscriber | None) -> str | None:
        if subscriber is None:
            return None
        name = subscriber if isinstance(subscriber, str) else subscriber.name
        known = {one.name for _, subscribers in self.app.schema for one in subscribers}
        if name not in known:
            raise ConfigurationError(
                f"the schema has no subscriber {name!r}{suggestion(name, known)}"
            )
        return name


@asynccontextmanager
async def running(
    app: Matador | Schema,
    *,
    consume_from: Iterable[str] | None = None,
    clock: ManualClock | None = None,
    checkpoints: CheckpointStore | None = None,
) -> AsyncGenerator[Harness]:
    """Run an application in memory for a test, whatever its transport.

    This starts the application itself, so code that uses it sends through it as usual; afterwards
    its configuration is restored. Messages to stubs stay in their queues. Checkpoints are kept in
    memory. A schema becomes an application that consumes every queue without stubs.

    Args:
        app: an application that is not started, or a schema.
        consume_from: the queues to consume; by default those of the application.
        clock: its clock; a new one by default.
        checkpoints: where resumable subscribers store their steps.

    Example:
        >>> async with running(app) as harness:
        ...     await harness.send(OrderPlaced("o-1", 5))
        ...     await harness.drain()
        ...     assert len(harness.handled("email-receipt")) == 1
    """
    clock = clock or ManualClock()
    if isinstance(app, Schema):
        app = _app_of(app)
    record = Record()
    transport = _Reaching(clock=clock)
    store = MemoryCheckpointStore(clock=clock) if checkpoints is None else checkpoints
    changes: dict[str, Any] = {} if consume_from is None else {"consume_from": consume_from}
    with app.configured(
        transport=transport, checkpoints=store, hooks=[record], clock=clock, **changes
    ):
        try:
            await app.start()
            yield Harness(app, transport, clock, record)
        finally:
            await app.shutdown(_LAST_CALLBACKS)


class _Reaching(MemoryTransport):
    """Accepts messages for stubs, so that a test can inspect them."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, in_process=False)


class Record(Hooks):
    """Hooks that record what happens."""

    def __init__(self) -> None:
        self.sent: list[Envelope[Any]] = []
        self.send_errors: list[EnqueueError] = []
        self.handled: list[WorkerSuccess] = []
        self.failed: list[WorkerError] = []
        self.dead_letters: list[DeadLettered] = []
        self.running: dict[str, str] = {}

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        """See ``Hooks``."""
        self.sent.append(event.envelope)

    def on_enqueue_error(self, event: EnqueueError) -> None:
        """See ``Hooks``."""
        self.send_errors.append(event)

    def on_worker_before_process(self, event: Processing) -> None:
        """See ``Hooks``."""
        docket = event.envelope.docket
        what = f"{docket.target_subscriber} of {docket.event_key} (attempt {docket.attempts})"
        self.running[event.envelope.id] = what

    def on_worker_success(self, event: WorkerSuccess) -> None:
        """See ``Hooks``."""
        self.running.pop(event.envelope.id, None)
        self.handled.append(event)

    def on_worker_error(self, event: WorkerError) -> None:
        """See ``Hooks``."""
        self.running.pop(event.envelope.id, None)
        if event.ran:
            self.failed.append(event)
        self._dead(event, event.envelope)

    def on_decode_error(self, event: DecodeFailure) -> None:
        """See ``Hooks``."""
        self._dead(event, None, event.delivery.body)

    def _dead(
        self,
        event: WorkerError | DecodeFailure,
        envelope: Envelope[Any] | None,
        body: bytes | None = None,
    ) -> None:
        match event.decision:
            case SendToDeadLetters(kind, reason):
                letter = DeadLettered(kind, reason, event.queue, event.error, envelope, body)
                self.dead_letters.append(letter)
            case _:
                pass


def _is_of(envelope: Envelope[Any], subscriber: str | None) -> bool:
    return subscriber is None or envelope.docket.target_subscriber == subscriber


def _app_of(schema: Schema) -> Matador:
    subscribers: Sequence[AnySubscriber] = [one for _, some in schema for one in some]
    queues = list(dict.fromkeys(["events", *(one.queue for one in subscribers if one.queue)]))
    stubs = {one.queue or "events" for one in subscribers if isinstance(one, SubscriberStub)}
    return Matador(
        MemoryTransport(),
        schema=schema,
        topology=Topology("test", queues=queues),
        consume_from=[queue for queue in queues if queue not in stubs],
    )
