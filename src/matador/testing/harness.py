"""The harness of a test: records what a service does, and moves the clock. See ``running``."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from matador.channels import QueueService
from matador.errors import ConfigurationError, RpcTimeoutError, TimeoutError
from matador.events.app import Matador
from matador.jobs import Queue, Worker
from matador.model.envelope import Envelope
from matador.model.options import Seconds, seconds, suggestion
from matador.policy.retry import SendToDeadLetters
from matador.pubsub import Subscriber
from matador.rpc import RemoteError, RpcServer
from matador.runtime.facts import Attempt, NotSent, Received, Sent
from matador.runtime.hooks import Hooks
from matador.runtime.service import Service
from matador.testing.clock import ManualClock
from matador.testing.wait import wait_for
from matador.transports.kit.routing import topic_matches
from matador.transports.memory import MemoryTransport

T = TypeVar("T")

_A_LITTLE = 0.000_001  # a time of day has a precision of one microsecond
_TURNS = 10  # iterations of the event loop, in which woken tasks start
_SILENCE = 0.1  # real seconds of idle time after which no reply is expected


class Named(Protocol):
    """A subscriber of events, or a declared job."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


Of: TypeAlias = "str | Named | None"
"""Selects messages by name: a subscriber of events, the name of a job, a command, a pattern or a
routing key of pub/sub, or ``channel.name``. None: all."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message that became a dead letter during the test.

    Attributes:
        kind: ``undeliverable``, ``unhandled`` or ``dlq``.
        reason: why.
        queue: the full name of the queue it came from.
        error: the exception.
        envelope: the message; None if it could not be read.
        body: its bytes, if it could not be read.
    """

    kind: str
    reason: str
    queue: str
    error: BaseException
    envelope: Envelope[Any] | None = None
    body: bytes | None = None


class Harness:
    """A service that runs in memory, with a record of what it did. Created by ``running``.

    The harness of each way in adds how messages are sent: ``send``, ``add``, ``call``, ``publish``.

    Attributes:
        transport: the in-process transport it runs on, for inspection.
        clock: its clock, which only moves when the test advances it.
    """

    def __init__(
        self,
        services: Sequence[Service],
        transport: MemoryTransport,
        clock: ManualClock,
        record: Recorder,
    ) -> None:
        self.transport = transport
        self.clock = clock
        self._services = services
        self._record = record

    # -- what happened ----------------------------------------------------------------------------

    @property
    def sent(self) -> list[Envelope[Any]]:
        """Every message that was stored, in order.

        A job, a call or a message is an envelope too: ``data`` is plain, ``docket.event_key`` the
        name of the job, the command or the routing key.
        """
        return [one.envelope for one in self._record.sent]

    @property
    def send_errors(self) -> list[NotSent]:
        """Every message that could not be stored, and why."""
        return list(self._record.send_errors)

    def attempts(self, of: Of = None) -> list[Attempt]:
        """Every attempt, in order of completion, with its ``outcome``, ``error`` and ``result``.

        Raises:
            ConfigurationError: nothing has this name; a typo must not make a test pass.
        """
        name = self._name(of)
        return [one for one in self._record.attempts if name is None or _is_for(one.message, name)]

    def handled(self, of: Of = None) -> list[Envelope[Any]]:
        """The messages that were handled without an error, in order of completion."""
        return [one.envelope for one in self.attempts(of) if one.error is None]

    def results(self, of: Of = None) -> list[Any]:
        """The results of the handlers, in order of completion."""
        return [one.result for one in self.attempts(of) if one.error is None]

    def failed(self, of: Of = None) -> list[Attempt]:
        """Every attempt in which a handler failed, with its ``error`` and ``decision``."""
        return [one for one in self.attempts(of) if one.error is not None and one.ran]

    def dead_letters(self, of: Of = None, *, kind: str | None = None) -> list[DeadLettered]:
        """The messages that became dead letters; failed jobs are dead letters, too."""
        letters = [letter for one in self.attempts(of) if (letter := _letter(one)) is not None]
        return [letter for letter in letters if kind in (None, letter.kind)]

    def raise_errors(self) -> None:
        """Raise the error of the first attempt that failed: for tests that expect none."""
        for attempt in self._record.attempts:
            if attempt.error is not None:
                raise attempt.error

    # -- time -------------------------------------------------------------------------------------

    async def drain(self, *, delayed: bool = True, timeout: float = 5.0) -> None:
        """Wait until all messages in the consumed queues are handled.

        Does not wait for retries and delayed messages, but advances the clock until each is due.
        With ``delayed=False`` they stay in their queues. Queues that nothing consumes here, or
        whose consumer is paused, are not drained.

        Raises:
            TimeoutError: after ``timeout`` real seconds; says what is left.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for _ in range(_TURNS):
                        await asyncio.sleep(0)
                    await wait_for(self._is_quiet, timeout=2 * timeout + 1)
                    due = self._next_due() if delayed else None
                    if due is None:
                        return
                    self._move_to(due)
        except builtins.TimeoutError as error:
            raise TimeoutError(
                f"not all messages were handled within {timeout:g} s; "
                f"still there: {await self._left()}"
            ) from error

    async def advance(self, by: Seconds, *, timeout: float = 5.0) -> None:
        """Move the clock, and handle everything that falls due meanwhile, each at its own time.

        Raises:
            TimeoutError: after ``timeout`` real seconds in which what is due was not handled.
        """
        end = self.clock.monotonic() + seconds(by, "advance")
        await self.drain(delayed=False, timeout=timeout)
        while (due := await self._next_event()) is not None and due <= end + _A_LITTLE:
            self._move_to(due)
            await self.drain(delayed=False, timeout=timeout)
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
        await self.drain(delayed=False, timeout=timeout)

    # -- inside -----------------------------------------------------------------------------------

    def _move_to(self, due: float) -> None:
        self.clock.advance(max(0.0, due - self.clock.monotonic()) + _A_LITTLE)

    async def _answered(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """Wait for a reply, and advance the clock to each retry.

        A server replies before it settles the message: waits until the attempt is recorded.
        """
        loop, before = asyncio.get_running_loop(), len(self._record.attempts)
        task, silent_since = asyncio.create_task(call), loop.time()

        def is_recorded() -> bool:
            return any(one.outcome != "retry" for one in self._record.attempts[before:])

        try:
            while not task.done():
                await asyncio.wait([task], timeout=_SILENCE / 10)
                if task.done() or not await self._is_quiet():
                    silent_since = loop.time()
                elif (due := self._next_due()) is not None:
                    self._move_to(due)
                elif loop.time() - silent_since > _SILENCE:
                    raise RpcTimeoutError(f"{what}: no reply, and nothing is left to be handled")
            if isinstance(task.exception(), RemoteError | None):
                await wait_for(is_recorded, message=f"the attempt of {what}")
            return task.result()
        finally:
            task.cancel()

    @property
    def _queues(self) -> list[str]:
        """The queues that are consumed."""
        receivers = (one for one in self._services if not isinstance(one, Queue))
        return list(dict.fromkeys(at.queue for one in receivers for at in one.consumer_health))

    async def _is_quiet(self) -> bool:
        if not all(one.is_idle for one in self._services):
            return False
        depths = [await self.transport.depth(queue) for queue in self._queues]
        return all(depth.in_flight == 0 for depth in depths)

    def _next_due(self) -> float | None:
        """When a message is due next."""
        due = (self.transport.next_due(queue) for queue in self._queues)
        return min((one for one in due if one is not None), default=None)

    async def _next_event(self) -> float | None:
        """When the next scheduled action is due."""
        return self._next_due()

    async def _left(self) -> str:
        left: list[str] = []
        for queue in self._queues:
            depth = await self.transport.depth(queue)
            states = {"ready": depth.ready, "in flight": depth.in_flight, "delayed": depth.delayed}
            left += [f"{count} {state} in {queue}" for state, count in states.items() if count]
        left += [f"{name} is still running" for name in sorted(self._record.running.values())]
        return ", ".join(left) or "a message that is being sent"

    def _name(self, of: Of) -> str | None:
        if of is None:
            return None
        name = of if isinstance(of, str) else of.name
        known: list[str] = []
        for service in self._services:
            names, others = _names(service)
            if name in names or others(name):
                return name
            known += names
        raise ConfigurationError(f"nothing here is named {name!r}{suggestion(name, known)}")


class Recorder(Hooks):
    """Hooks that record what happens, for every way in."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.send_errors: list[NotSent] = []
        self.attempts: list[Attempt] = []
        self.running: dict[str, str] = {}

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent.extend(batch)

    def on_enqueue_error(self, event: NotSent) -> None:
        self.send_errors.append(event)

    def on_worker_before_process(self, event: Received) -> None:
        receiver = event.receiver if event.way == "event" else event.queue
        self.running[event.id] = f"{receiver} of {event.name} (attempt {event.attempt})"

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        for attempt in batch:
            self.running.pop(attempt.id, None)
            self.attempts.append(attempt)


def _letter(attempt: Attempt) -> DeadLettered | None:
    decision, error = attempt.decision, attempt.error
    if attempt.outcome != "dead-letter" or not isinstance(decision, SendToDeadLetters):
        return None
    assert error is not None, "only what failed becomes a dead letter"
    readable = not attempt.malformed
    return DeadLettered(
        decision.kind,
        decision.reason,
        attempt.queue,
        error,
        attempt.envelope if readable else None,
        None if readable else attempt.delivery.body,
    )


# -- names ----------------------------------------------------------------------------------------


def _names(service: Service) -> tuple[Collection[str], Callable[[str], bool]]:
    """The valid names for messages of a service, and a check for further ones."""
    if isinstance(service, Matador):
        return {one.name for _, subscribers in service.schema for one in subscribers}, _never
    if isinstance(service, Worker):
        names = service.functions
        return {name for name in names if name is not None}, lambda _: None in names
    if isinstance(service, RpcServer):
        return service.commands, lambda name: name.upper() in service.commands
    if isinstance(service, Subscriber):
        patterns = {pattern for pattern, _ in service.bindings}
        return patterns, lambda name: any(topic_matches(one, name) for one in patterns)
    if isinstance(service, QueueService):
        return service.consumers.keys(), _never
    return (), _never


def _never(name: str) -> bool:
    return False


def _is_for(message: Received, name: str) -> bool:
    if message.way == "event":
        return message.receiver == name
    if message.way == "job":
        return message.name == name
    if message.way == "rpc":
        return message.name.upper() == name.upper()
    # Published messages of a channel come from the service's own queue: orders.{uuid}.
    channel = f"{message.receiver.partition('.')[0]}.{message.name}"
    return name in (message.receiver, channel) or topic_matches(name, message.name)
