"""What may be recorded of messages, whatever their way in: plain values, and who takes them.

``matador.observe.Journal`` is a recorder. A way in takes any ``Recorder``, tells it what was stored
and what came of each attempt, and knows nothing of files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from matador.errors import ConfigurationError
from matador.policy.retry import Outcome

log = logging.getLogger("matador.recorder")

Way: TypeAlias = Literal["event", "job", "rpc", "message"]
"""The way in: an event, a job, a remote call, or a message of pub/sub."""


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that its broker has stored. Times are seconds since the epoch.

    Attributes:
        way: the way in.
        id: unique among the messages of its receiver. The id of a job may be used again once the
            job is gone; ``created_at`` tells them apart.
        name: what it is: the name of a job, the command of a call, or the routing key of a message.
        receiver: who gets it, as users say: the queue of a job or of a call, or the exchange.
        queue: the full name of the queue, as the broker knows it.
        transport: the name of the transport.
        created_at: when it was made.
        data: the payload as JSON. Bytes that are not JSON are recorded as text.
        due_at: when it is to be handled, if not at once.
        correlation_id: of what it is a part.
        metadata: a JSON object, beside the payload.
        options: what else is needed to send it again in the same way.
    """

    way: Way
    id: str
    name: str
    receiver: str
    queue: str
    transport: str
    created_at: float
    data: bytes
    due_at: float | None = None
    correlation_id: str | None = None
    metadata: bytes | None = None
    options: Mapping[str, str | int] | None = None


class AttemptedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt to handle a message, when what came of it is stored.

    Attributes:
        way: the way in, and so on: as in ``SentMessage``.
        attempt: which one it was, from 1.
        outcome: ``success``, ``retry``, ``dead-letter`` or ``discard``.
        started_at: when it began.
        duration: how many seconds it took.
        due_at: since when it could have begun. None: since ``created_at``.
        deliveries: how often the message was delivered, this time included.
        ran: False if the message was refused, and no code of the user's ran.
        known: False if nobody here handles messages of this name: only their sender knows it.
        error_type: the name of the error's class.
        error: the message of the error.
        reason: why the message was not handled.
    """

    way: Way
    id: str
    name: str
    receiver: str
    queue: str
    transport: str
    created_at: float
    attempt: int
    outcome: Outcome
    started_at: float
    duration: float
    due_at: float | None = None
    deliveries: int = 1
    ran: bool = True
    known: bool = True
    error_type: str | None = None
    error: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    metadata: bytes | None = None


@runtime_checkable
class Recorder(Protocol):
    """Takes note of messages. Methods are called in an event loop, return at once, and do not
    raise: whoever sends or handles messages does not wait for the recorder.

    Example:
        >>> class Printed:
        ...     def on_start(self) -> None: ...
        ...     async def on_stop(self) -> None: ...
        ...     def record_sent(self, message: SentMessage) -> None:
        ...         print("sent", message.way, message.name, message.id)
        ...     def record_attempt(self, attempt: AttemptedMessage) -> None:
        ...         print(attempt.outcome, attempt.name, attempt.id)
        >>> queue = Queue("emails", journal=Printed())
    """

    def on_start(self) -> Any:
        """Somebody will record from now on. Called once by each of them."""
        ...

    async def on_stop(self) -> Any:
        """One of them records nothing more. After the last one, everything is kept."""
        ...

    def record_sent(self, message: SentMessage) -> None:
        """A message was stored."""
        ...

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """An attempt has ended, and what becomes of the message is stored."""
        ...


def check_recorder(given: object, where: str) -> Recorder | None:
    """A recorder, or None.

    Raises:
        ConfigurationError: it is neither.
    """
    if given is None or isinstance(given, Recorder):
        return given
    hint = f"; write Journal({given!r})" if isinstance(given, str) else ""
    raise ConfigurationError(
        f"{where} journal must be a matador.observe.Journal or another Recorder, "
        f"got {given!r}{hint}"
    )


class Recorders:
    """Several recorders as one. An error of one of them is logged, and the others go on.

    Example:
        >>> queue = Queue("emails", journal=Recorders(Journal("journal/"), PrometheusMetrics()))
    """

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    @property
    def recorders(self) -> tuple[Recorder, ...]:
        """The recorders, in the order in which they are called."""
        return self._recorders

    def on_start(self) -> None:
        """See ``Recorder``."""
        self._each(lambda one: one.on_start())

    async def on_stop(self) -> None:
        """See ``Recorder``."""
        for one in self._recorders:
            try:
                await one.on_stop()
            except Exception:
                log.exception("%r could not be closed", one)

    def record_sent(self, message: SentMessage) -> None:
        """See ``Recorder``."""
        self._each(lambda one: one.record_sent(message))

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """See ``Recorder``."""
        self._each(lambda one: one.record_attempt(attempt))

    def _each(self, call: Callable[[Recorder], Any]) -> None:
        for one in self._recorders:
            try:
                call(one)
            except Exception:
                log.exception("%r raised an error, which was ignored", one)
