"""Hooks: the one stream of events that logs, metrics, traces, the journal and users listen to.

``Hooks`` is what users subclass. ``HookSet`` is what the rest of Matador calls: made once at start,
it holds only the hooks that somebody overrides, so that an unused one costs nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from matador.errors import MatadorError
from matador.model.envelope import Envelope
from matador.model.message import ConnectionState, Delivery, Receipt
from matador.model.subscriber import Subscriber
from matador.policy.retry import Decision, Outcome

log = logging.getLogger("matador.hooks")

# -- what hooks are told ----------------------------------------------------------------------


class Sending(msgspec.Struct, frozen=True):
    """Events are about to be sent, in one call of ``send`` or ``send_many``.

    Attributes:
        event_keys: the keys of the events, each once.
        count: how many events there are.
        transport: the name of the transport.
        metadata: empty; what a hook adds travels with every envelope, unless the sender sets it.
    """

    event_keys: tuple[str, ...]
    count: int
    transport: str
    metadata: dict[str, Any]


class EnqueueSuccess(msgspec.Struct, frozen=True):
    """One envelope was safely stored."""

    envelope: Envelope[Any]
    queue: str
    transport: str


class EnqueueWarning(msgspec.Struct, frozen=True):
    """An envelope was sent in another way than asked: to a fall-back queue, without its delay, …"""

    envelope: Envelope[Any]
    queue: str
    transport: str
    text: str
    error: BaseException | None = None


class EnqueueError(msgspec.Struct, frozen=True):
    """One envelope was not stored, and no fall-back took it."""

    envelope: Envelope[Any]
    queue: str
    transport: str
    error: MatadorError


class TransportFallback(msgspec.Struct, frozen=True):
    """A message went to the next transport of a group, because one failed."""

    message_id: str
    queue: str
    failed: str
    next: str
    error: BaseException


class Processing(msgspec.Struct, frozen=True):
    """A message is about to run."""

    envelope: Envelope[Any]
    subscriber: Subscriber[Any]
    queue: str
    transport: str
    receipt: Receipt


class WorkerSuccess(msgspec.Struct, frozen=True):
    """A callback returned, and its message is settled. Times are seconds."""

    envelope: Envelope[Any]
    subscriber: Subscriber[Any]
    result: Any
    queue: str
    transport: str
    receipt: Receipt
    started_at: float
    duration: float

    outcome: ClassVar[Outcome] = "success"

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return self.duration * 1000


class WorkerError(msgspec.Struct, frozen=True):
    """A message failed, or was refused before it ran, and was settled by ``decision``.

    ``subscriber`` is None if nobody here knows it; ``ran`` tells whether the callback was started.
    """

    envelope: Envelope[Any]
    subscriber: Subscriber[Any] | None
    error: BaseException
    decision: Decision
    queue: str
    transport: str
    receipt: Receipt
    started_at: float
    duration: float
    ran: bool

    @property
    def outcome(self) -> Outcome:
        """What became of the message."""
        return self.decision.outcome

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return self.duration * 1000


class DecodeFailure(msgspec.Struct, frozen=True):
    """Bytes that are not an envelope arrived; ``decision`` is None if they were ignored."""

    error: MatadorError
    delivery: Delivery
    queue: str
    transport: str
    decision: Decision | None

    @property
    def outcome(self) -> Outcome:
        """What became of the message."""
        return "discard" if self.decision is None else self.decision.outcome


class ConnectionChange(msgspec.Struct, frozen=True):
    """A connection is in another state."""

    transport: str
    state: ConnectionState


class CheckpointEvent(msgspec.Struct, frozen=True):
    """A checkpoint of a resumable subscriber was loaded, used, missed or cleared.

    ``step`` is the key of the step (hit, miss); ``steps`` how many are stored (loaded); ``reason``
    why it was cleared.
    """

    envelope_id: str
    subscriber: str
    step: str | None = None
    steps: int = 0
    reason: str | None = None


Proceed: TypeAlias = Callable[[], Awaitable[None]]


class Hooks:
    """Subclass it and override what you want to hear of. Every hook may be sync or async.

    A hook that raises is logged and changes nothing. Several hook objects are called in the order
    given. Hooks that decide something (``get_…``) return None to leave the decision to others.

    Example:
        >>> class Alerts(Hooks):
        ...     def on_worker_error(self, event: WorkerError) -> None:
        ...         if event.subscriber and event.subscriber.importance == "must-investigate":
        ...             page_somebody(event.error)
        >>> app = Matador("memory://", schema=schema, hooks=[Alerts()])
    """

    def on_start(self) -> Any:
        """The application has started."""

    def on_stop(self) -> Any:
        """The application has stopped; nothing will be reported any more."""

    def on_send_wrap(self, event: Sending, proceed: Proceed) -> Any:
        """Around a whole send: ``await proceed()`` sends, once. For traces."""

    def on_enqueue_success(self, event: EnqueueSuccess) -> Any:
        """An envelope was stored."""

    def on_enqueue_warning(self, event: EnqueueWarning) -> Any:
        """An envelope was stored in another way than asked."""

    def on_enqueue_error(self, event: EnqueueError) -> Any:
        """An envelope was not stored."""

    def on_transport_fallback(self, event: TransportFallback) -> Any:
        """A message went to the next transport of a group."""

    def on_worker_wrap(self, event: Processing, proceed: Proceed) -> Any:
        """Around the whole processing of a message: ``await proceed()`` runs it, once."""

    def on_worker_before_process(self, event: Processing) -> Any:
        """A message is about to run."""

    def on_worker_success(self, event: WorkerSuccess) -> Any:
        """A message was handled and settled."""

    def on_worker_error(self, event: WorkerError) -> Any:
        """A message failed, or was refused, and was settled."""

    def on_decode_error(self, event: DecodeFailure) -> Any:
        """Bytes that are not an envelope arrived."""

    def on_connection_state_change(self, event: ConnectionChange) -> Any:
        """A connection is in another state."""

    def on_checkpoint_loaded(self, event: CheckpointEvent) -> Any:
        """The steps of an earlier attempt were found."""

    def on_checkpoint_hit(self, event: CheckpointEvent) -> Any:
        """A step was not run again: its stored result was used."""

    def on_checkpoint_miss(self, event: CheckpointEvent) -> Any:
        """A step was run."""

    def on_checkpoint_cleared(self, event: CheckpointEvent) -> Any:
        """The steps of a message were forgotten."""

    def load_universal_metadata(self) -> Any:
        """Metadata for every envelope sent: a mapping. Event and send options win over it."""

    def get_queue_concurrency(self, queue: str) -> Any:
        """How many messages of a queue to handle at once; None: as the topology says."""

    def get_retry_delay(self, envelope: Envelope[Any]) -> Any:
        """Seconds until the next attempt; None: as the retry policy says."""

    def get_attempts(self, envelope: Envelope[Any]) -> Any:
        """The most attempts of this message; None: as the retry policy says."""

    def get_max_deliveries(self, envelope: Envelope[Any]) -> Any:
        """The most deliveries of this message; None: as the retry policy says."""


# -- how hooks are called ---------------------------------------------------------------------

Emit: TypeAlias = Callable[..., Awaitable[None]]
Ask: TypeAlias = Callable[..., Awaitable[Any]]

_EVENTS = (
    "on_start",
    "on_stop",
    "on_enqueue_success",
    "on_enqueue_warning",
    "on_enqueue_error",
    "on_transport_fallback",
    "on_worker_before_process",
    "on_worker_success",
    "on_worker_error",
    "on_decode_error",
    "on_connection_state_change",
    "on_checkpoint_loaded",
    "on_checkpoint_hit",
    "on_checkpoint_miss",
    "on_checkpoint_cleared",
)
_QUESTIONS = (
    "get_queue_concurrency",
    "get_retry_delay",
    "get_attempts",
    "get_max_deliveries",
)


class HookSet:
    """The hooks of an application, composed. What nobody overrides is None, and is not called."""

    on_start: Emit | None = None
    on_stop: Emit | None = None
    on_enqueue_success: Emit | None = None
    on_enqueue_warning: Emit | None = None
    on_enqueue_error: Emit | None = None
    on_transport_fallback: Emit | None = None
    on_worker_before_process: Emit | None = None
    on_worker_success: Emit | None = None
    on_worker_error: Emit | None = None
    on_decode_error: Emit | None = None
    on_connection_state_change: Emit | None = None
    on_checkpoint_loaded: Emit | None = None
    on_checkpoint_hit: Emit | None = None
    on_checkpoint_miss: Emit | None = None
    on_checkpoint_cleared: Emit | None = None
    get_queue_concurrency: Ask | None = None
    get_retry_delay: Ask | None = None
    get_attempts: Ask | None = None
    get_max_deliveries: Ask | None = None
    load_universal_metadata: Callable[[], Awaitable[dict[str, Any]]] | None = None

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        for name in _EVENTS:
            if functions := _overrides(hooks, name):
                setattr(self, name, _emitter(name, functions))
        for name in _QUESTIONS:
            if functions := _overrides(hooks, name):
                setattr(self, name, _asker(name, functions))
        if functions := _overrides(hooks, "load_universal_metadata"):
            self.load_universal_metadata = _metadata_loader(functions)
        self.wraps: tuple[Callable[..., Any], ...] = tuple(_overrides(hooks, "on_worker_wrap"))
        self.send_wraps: tuple[Callable[..., Any], ...] = tuple(_overrides(hooks, "on_send_wrap"))
        self.quick = not any(
            inspect.iscoroutinefunction(function)
            for name in ("on_worker_success", "on_worker_error", "on_decode_error")
            for function in _overrides(hooks, name)
        )
        """Are the hooks that follow a settlement plain functions, which never wait?"""
        stored = _overrides(hooks, "on_enqueue_success")
        plain = stored and not any(map(inspect.iscoroutinefunction, stored))
        self.tell_stored: Callable[[EnqueueSuccess], None] | None = (
            _teller(stored) if plain else None
        )
        """``on_enqueue_success`` without waiting, if somebody overrides it by plain functions."""

    async def wrapped(self, event: Processing, run: Proceed) -> None:
        """Run a message inside every ``on_worker_wrap``, exactly once, whatever the hooks do."""
        await _wrapped("on_worker_wrap", self.wraps, event, run)

    async def wrapped_send(self, event: Sending, run: Proceed) -> None:
        """Send inside every ``on_send_wrap``, exactly once, whatever the hooks do."""
        await _wrapped("on_send_wrap", self.send_wraps, event, run)


async def _wrapped(
    name: str, wraps: Sequence[Callable[..., Any]], event: Processing | Sending, run: Proceed
) -> None:
    ran = False

    async def once() -> None:
        nonlocal ran
        if ran:
            log.warning("%s called proceed() twice; the second call does nothing", name)
            return
        ran = True
        await run()

    proceed: Proceed = once
    for wrap in reversed(wraps):
        proceed = _wrapping(name, wrap, event, proceed)
    await proceed()


def _overrides(hooks: Sequence[Hooks], name: str) -> list[Callable[..., Any]]:
    default = getattr(Hooks, name)
    found: list[Callable[..., Any]] = []
    for hook in hooks:
        function = getattr(hook, name, None)
        if function is not None and getattr(function, "__func__", function) is not default:
            found.append(function)
    return found


def _is_its_own(error: BaseException) -> bool:
    """Is it a failure of the hook's own? A cancellation may also be that of its caller."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() == 0
    return isinstance(error, Exception)


def _emitter(name: str, functions: Sequence[Callable[..., Any]]) -> Emit:
    async def emit(*arguments: Any) -> None:
        for function in functions:
            try:
                result = function(*arguments)
                if result is not None and inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if not _is_its_own(error):
                    raise
                log.exception("the hook %s raised; delivery goes on", name)

    return emit


def _teller(functions: Sequence[Callable[..., Any]]) -> Callable[[EnqueueSuccess], None]:
    waiting: set[asyncio.Future[Any]] = set()

    def done(task: asyncio.Future[Any]) -> None:
        waiting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "the hook on_enqueue_success raised; delivery goes on", exc_info=task.exception()
            )

    def tell(event: EnqueueSuccess) -> None:
        for function in functions:
            try:
                result = function(event)
            except Exception:
                log.exception("the hook on_enqueue_success raised; delivery goes on")
                continue
            if result is not None and inspect.isawaitable(result):
                # Not declared with ``async def``, so nobody could know: it ends beside the send.
                task = asyncio.ensure_future(result)
                waiting.add(task)
                task.add_done_callback(done)

    return tell


def _asker(name: str, functions: Sequence[Callable[..., Any]]) -> Ask:
    async def ask(*arguments: Any) -> Any:
        for function in functions:
            try:
                result = function(*arguments)
                if inspect.isawaitable(result):
                    result = await result
                if result is not None:
                    return result
            except BaseException as error:
                if not _is_its_own(error):
                    raise
                log.exception("the hook %s raised; the default is used", name)
        return None

    return ask


def _metadata_loader(
    functions: Sequence[Callable[..., Any]],
) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def load() -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for function in functions:
            try:
                result: Mapping[str, Any] | None = function()
                if inspect.isawaitable(result):
                    result = await result
                merged.update(result or {})
            except BaseException as error:
                if not _is_its_own(error):
                    raise
                log.exception("the hook load_universal_metadata raised; its metadata is left out")
        return merged

    return load


def _wrapping(
    name: str, wrap: Callable[..., Any], event: Processing | Sending, inner: Proceed
) -> Proceed:
    """``inner`` inside one wrap hook. An error of the hook's own never reaches the message."""

    async def proceed() -> None:
        reached = False
        failures: list[BaseException] = []

        async def call_inner() -> None:
            nonlocal reached
            reached = True
            try:
                await inner()
            except BaseException as error:  # cancellation: remembered, so no hook can swallow it
                failures.append(error)
                raise

        try:
            result = wrap(event, call_inner)
            if inspect.isawaitable(result):
                await result
            if not reached:
                log.warning("%s did not call proceed(); it goes on without the hook", name)
        except BaseException as error:
            if error in failures or not _is_its_own(error):
                raise
            log.exception("the hook %s raised; delivery goes on", name)
        if failures:
            raise failures[0]
        if not reached:
            await inner()

    return proceed
