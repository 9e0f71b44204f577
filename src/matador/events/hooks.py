"""Hooks: the stream of events for logs, metrics, traces, the journal and users' code.

Users subclass ``Hooks``. Matador calls ``HookSet``, which is created at the start and contains only
the hooks that are overridden, so that an unused hook costs nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import msgspec

from matador.errors import ConfigurationError, MatadorError
from matador.events.short_forms import (
    MakeShort,
    ShortAttempt,
    ShortSend,
    TellStored,
    TellSuccesses,
    short_forms,
    short_maker,
)
from matador.model.envelope import Envelope
from matador.model.message import ConnectionState, Delivery, Receipt
from matador.model.subscriber import Subscriber, place_of
from matador.policy.retry import Decision, Outcome

log = logging.getLogger("matador.hooks")

T = TypeVar("T")

# -- the events -----------------------------------------------------------------------------------


class Sending(msgspec.Struct, frozen=True):
    """Events are about to be sent, in one call of ``send`` or ``send_many``.

    Attributes:
        event_keys: the keys of the events, each once.
        count: the number of events.
        transport: the name of the transport.
        metadata: empty; entries that a hook adds go into every envelope, unless the sender sets
            the same key.
    """

    event_keys: tuple[str, ...]
    count: int
    transport: str
    metadata: dict[str, Any]


class EnqueueSuccess(msgspec.Struct, frozen=True):
    """An envelope was stored."""

    envelope: Envelope[Any]
    queue: str
    transport: str


class EnqueueWarning(msgspec.Struct, frozen=True):
    """An envelope was not sent as requested: to a fallback queue, without its delay, …"""

    envelope: Envelope[Any]
    queue: str
    transport: str
    text: str
    error: BaseException | None = None


class EnqueueError(msgspec.Struct, frozen=True):
    """An envelope was not stored, not even by a fallback."""

    envelope: Envelope[Any]
    queue: str
    transport: str
    error: MatadorError


class TransportFallback(msgspec.Struct, frozen=True):
    """A transport of a group failed, so a message was sent to the next one."""

    message_id: str
    queue: str
    failed: str
    next: str
    error: BaseException


class Processing(msgspec.Struct, frozen=True):
    """A message is about to be handled."""

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
    """A message failed, or was refused before it ran, and was settled according to ``decision``.

    ``subscriber`` is None if it is unknown here; ``ran``: whether the callback was started.
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
        """How the attempt ended."""
        return self.decision.outcome

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return self.duration * 1000


class DecodeFailure(msgspec.Struct, frozen=True):
    """A message could not be decoded; ``decision`` is None if it was ignored."""

    error: MatadorError
    delivery: Delivery
    queue: str
    transport: str
    decision: Decision | None

    @property
    def outcome(self) -> Outcome:
        """How the attempt ended."""
        return "discard" if self.decision is None else self.decision.outcome


class ConnectionChange(msgspec.Struct, frozen=True):
    """The state of a connection changed."""

    transport: str
    state: ConnectionState


class CheckpointEvent(msgspec.Struct, frozen=True):
    """A checkpoint of a resumable subscriber was loaded, hit, missed or cleared.

    ``step``: the key of the step (hit, miss). ``steps``: the number of stored steps (loaded).
    ``reason``: why it was cleared.
    """

    envelope_id: str
    subscriber: str
    step: str | None = None
    steps: int = 0
    reason: str | None = None


Proceed: TypeAlias = Callable[[], Awaitable[Any]]
"""Sends, or handles the message. Returns the error of the callback, if that failed; of a send it
returns None, and ``on_enqueue_error`` tells what failed."""


class Hooks:
    """Subclass it and override the hooks you need. Every hook may be sync or async.

    An error in a hook is logged and has no other effect. Several hook objects are called in the
    given order. Hooks that decide something (``get_…``) return None to leave the decision open.

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
        """The application has stopped. No other hook is called after this."""

    def on_send_wrap(self, event: Sending, proceed: Proceed) -> Any:
        """Called around a send, for traces: ``await proceed()`` sends, once."""

    def on_send_enter(self, event: Sending) -> Any:
        """A send begins. Sync: the cheaper form of ``on_send_wrap``.

        What it returns is passed to ``on_send_exit``. Both run in the task of the sender.
        """

    def on_send_exit(self, event: Sending, state: Any, error: BaseException | None) -> Any:
        """A send has ended, with ``error`` if it raised one. Sync."""

    def on_enqueue_success(self, event: EnqueueSuccess) -> Any:
        """An envelope was stored."""

    def on_enqueue_warning(self, event: EnqueueWarning) -> Any:
        """An envelope was not stored as requested."""

    def on_enqueue_error(self, event: EnqueueError) -> Any:
        """An envelope was not stored."""

    def on_transport_fallback(self, event: TransportFallback) -> Any:
        """A message was sent to the next transport of a group."""

    def on_worker_wrap(self, event: Processing, proceed: Proceed) -> Any:
        """Called around the handling of a message: ``await proceed()`` handles it, once.

        It returns the error with which the callback failed, or None. What becomes of the message
        is decided afterwards.
        """

    def on_worker_enter(self, event: Processing) -> Any:
        """A callback begins. Sync: the cheaper form of ``on_worker_wrap``.

        What it returns is passed to ``on_worker_exit``. Both run in the context variables of the
        callback, which end with it: what is set here need not be reset.
        """

    def on_worker_exit(self, event: Processing, state: Any, error: BaseException | None) -> Any:
        """A callback has ended, with ``error`` if it failed or was cancelled. Sync."""

    def on_worker_before_process(self, event: Processing) -> Any:
        """A message is about to be handled."""

    def on_worker_success(self, event: WorkerSuccess) -> Any:
        """A message was handled and settled."""

    def on_worker_error(self, event: WorkerError) -> Any:
        """A message failed, or was refused, and was settled."""

    def on_decode_error(self, event: DecodeFailure) -> Any:
        """A message could not be decoded."""

    def on_connection_state_change(self, event: ConnectionChange) -> Any:
        """The state of a connection changed."""

    def on_checkpoint_loaded(self, event: CheckpointEvent) -> Any:
        """The steps of an earlier attempt were loaded."""

    def on_checkpoint_hit(self, event: CheckpointEvent) -> Any:
        """The stored result of a step was used, so the step did not run again."""

    def on_checkpoint_miss(self, event: CheckpointEvent) -> Any:
        """A step has no stored result, so it runs."""

    def on_checkpoint_cleared(self, event: CheckpointEvent) -> Any:
        """The steps of a message were deleted."""

    def load_universal_metadata(self) -> Any:
        """A mapping of metadata for every envelope. Events and send options override it."""

    def get_queue_concurrency(self, queue: str) -> Any:
        """The concurrency of a queue; None: the topology decides."""

    def get_retry_delay(self, envelope: Envelope[Any]) -> Any:
        """Seconds until the next attempt; None: the retry policy decides."""

    def get_attempts(self, envelope: Envelope[Any]) -> Any:
        """The maximum number of attempts of this message; None: the retry policy decides."""

    def get_max_deliveries(self, envelope: Envelope[Any]) -> Any:
        """The maximum number of deliveries of this message; None: the retry policy decides."""


# -- how hooks are called -------------------------------------------------------------------------

Emit: TypeAlias = Callable[..., Awaitable[None]]
Ask: TypeAlias = Callable[..., Awaitable[Any]]


class HookSet:
    """The combined hooks of an application. A hook that is not overridden is None."""

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
        for name in HookSet.__annotations__:
            if functions := _overrides(hooks, name):
                combine = _COMBINE[name.partition("_")[0]]
                setattr(self, name, combine(name, functions))
        self.wraps: tuple[Callable[..., Any], ...] = tuple(_overrides(hooks, "on_worker_wrap"))
        self.send_wraps: tuple[Callable[..., Any], ...] = tuple(_overrides(hooks, "on_send_wrap"))
        self.around = _around("on_worker", hooks)
        self.send_around = _around("on_send", hooks)
        self.quick = not any(
            inspect.iscoroutinefunction(function)
            for name in ("on_worker_success", "on_worker_error", "on_decode_error")
            for function in _overrides(hooks, name)
        )
        """Are all hooks that follow a settlement sync?"""
        self.tell_stored = _teller("on_enqueue_success", hooks)
        """``on_enqueue_success`` as a sync function, if all its overrides are sync."""
        self.tell_success = _teller("on_worker_success", hooks)
        """``on_worker_success`` as a sync function, if all its overrides are sync."""
        self.short_stored: MakeShort[TellStored] | None = short_maker(
            _overriding(hooks, "on_enqueue_success"), "on_enqueue_success", "short_stored"
        )
        """Makes what may be called instead of ``on_enqueue_success``."""
        self.short_success: MakeShort[TellSuccesses] | None = short_maker(
            _overriding(hooks, "on_worker_success"), "on_worker_success", "short_success"
        )
        """Makes what may be called instead of ``on_worker_success``."""
        self.short_send: ShortSend | None = (
            _only_short_form("on_send", hooks, "short_send")
            if self.load_universal_metadata is None
            else None
        )
        self.short_attempt: ShortAttempt | None = _only_short_form(
            "on_worker", hooks, "short_attempt"
        )

    async def wrapped(self, event: Processing, run: Proceed) -> None:
        """Handle a message inside every ``on_worker_wrap``, exactly once, even if hooks fail."""
        await _wrapped("on_worker_wrap", self.wraps, event, run)

    async def wrapped_send(self, event: Sending, run: Proceed) -> None:
        """Send inside every ``on_send_wrap``, exactly once, even if hooks fail."""
        await _wrapped("on_send_wrap", self.send_wraps, event, run)


async def _wrapped(
    name: str, wraps: Sequence[Callable[..., Any]], event: Processing | Sending, run: Proceed
) -> None:
    ran = False

    async def once() -> BaseException | None:
        nonlocal ran
        if ran:
            log.warning("%s called proceed() twice; the second call was ignored", name)
            return None
        ran = True
        return await run()

    proceed: Proceed = once
    for wrap in reversed(wraps):
        proceed = _wrapping(name, wrap, event, proceed)
    await proceed()


def _overrides(hooks: Sequence[Hooks], name: str) -> list[Callable[..., Any]]:
    return [getattr(hook, name) for hook in _overriding(hooks, name)]


def _overriding(hooks: Sequence[Hooks], name: str) -> list[Hooks]:
    default = getattr(Hooks, name)
    found: list[Hooks] = []
    for hook in hooks:
        function = getattr(hook, name, None)
        if function is not None and getattr(function, "__func__", function) is not default:
            found.append(hook)
    return found


def _only_short_form(name: str, hooks: Sequence[Hooks], form: str) -> Any:
    """The short form of the one hook that surrounds something; None if there are several."""
    pair = (f"{name}_enter", f"{name}_exit")
    surrounding = [one for one in hooks if any(_overriding([one], each) for each in pair)]
    found = short_forms(surrounding, pair, form)
    return found[0] if len(found) == 1 else None


def _is_its_own(error: BaseException) -> bool:
    """Did the hook itself fail? A cancellation may come from its caller."""
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
                log.exception("the hook %s raised an error, which was ignored", name)

    return emit


def _teller(name: str, hooks: Sequence[Hooks]) -> Callable[[Any], None] | None:
    functions = _overrides(hooks, name)
    if not functions or any(map(inspect.iscoroutinefunction, functions)):
        return None
    waiting: set[asyncio.Future[Any]] = set()

    def done(task: asyncio.Future[Any]) -> None:
        waiting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "the hook %s raised an error, which was ignored", name, exc_info=task.exception()
            )

    def tell(event: Any) -> None:
        for function in functions:
            try:
                result = function(event)
            except Exception:
                log.exception("the hook %s raised an error, which was ignored", name)
                continue
            if result is not None and inspect.isawaitable(result):
                # Not declared with ``async def``, so it looked sync: it runs beside.
                task = asyncio.ensure_future(result)
                waiting.add(task)
                task.add_done_callback(done)

    return tell


class Around:
    """The ``enter`` and ``exit`` hooks of several objects. Exits come in the reverse order."""

    __slots__ = ("_name", "_pairs")

    def __init__(
        self, name: str, pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]
    ) -> None:
        self._name = name
        self._pairs = tuple(pairs)

    def enter(self, event: Any) -> list[Any]:
        """What the ``enter`` hooks return. An error is logged, and its ``exit`` is not called."""
        states: list[Any] = []
        for enter, _ in self._pairs:
            try:
                states.append(enter(event))
            except Exception:
                log.exception("the hook %s_enter raised an error, which was ignored", self._name)
                states.append(_FAILED)
        return states

    def exit(self, event: Any, states: Sequence[Any], error: BaseException | None) -> None:
        """Call the ``exit`` hooks."""
        for (_, leave), state in zip(reversed(self._pairs), reversed(states), strict=True):
            if state is not _FAILED:
                try:
                    leave(event, state, error)
                except Exception:
                    log.exception("the hook %s_exit raised an error, which was ignored", self._name)

    async def between(self, event: Any, call: Awaitable[T]) -> T:
        """Await a call between ``enter`` and ``exit``."""
        states = self.enter(event)
        try:
            result = await call
        except BaseException as error:
            self.exit(event, states, error)
            raise
        self.exit(event, states, None)
        return result


_FAILED = object()


def _around(name: str, hooks: Sequence[Hooks]) -> Around | None:
    for kind in ("enter", "exit"):
        for function in _overrides(hooks, f"{name}_{kind}"):
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"the hook {name}_{kind} must not be async; use {name}_wrap to wait for "
                    f"something{place_of(function)}"
                )
    pairs = [
        (getattr(one, f"{name}_enter"), getattr(one, f"{name}_exit"))
        for one in hooks
        if _overrides([one], f"{name}_enter") or _overrides([one], f"{name}_exit")
    ]
    return Around(name, pairs) if pairs else None


async def _answer(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a hook returns; None, with a log line, if it raises an error."""
    try:
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result
    except BaseException as error:
        if not _is_its_own(error):
            raise
        log.exception("the hook %s raised an error; its result is ignored", name)
        return None


def _asker(name: str, functions: Sequence[Callable[..., Any]]) -> Ask:
    async def ask(*arguments: Any) -> Any:
        for function in functions:
            result = await _answer(name, function, *arguments)
            if result is not None:
                return result
        return None

    return ask


def _loader(name: str, functions: Sequence[Callable[..., Any]]) -> Ask:
    async def load() -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for function in functions:
            found = await _answer(name, function)
            if isinstance(found, Mapping):
                merged.update(cast("Mapping[str, Any]", found))
            elif found is not None:
                kind = type(found).__name__
                log.error("the hook %s returned %s, not a mapping; it is ignored", name, kind)
        return merged

    return load


_COMBINE = {"on": _emitter, "get": _asker, "load": _loader}


def _wrapping(
    name: str, wrap: Callable[..., Any], event: Processing | Sending, inner: Proceed
) -> Proceed:
    """``inner`` inside one wrap hook. Errors of the hook itself are logged and ignored."""

    async def proceed() -> BaseException | None:
        reached = False
        error_of_callback: BaseException | None = None
        failures: list[BaseException] = []

        async def call_inner() -> BaseException | None:
            nonlocal reached, error_of_callback
            reached = True
            try:
                error_of_callback = await inner()
                return error_of_callback
            except BaseException as error:  # a hook must not swallow a cancellation
                failures.append(error)
                raise

        try:
            result = wrap(event, call_inner)
            if inspect.isawaitable(result):
                await result
            if not reached:
                log.warning("%s did not call proceed(); continuing without the hook", name)
        except BaseException as error:
            if error in failures or not _is_its_own(error):
                raise
            log.exception("the hook %s raised an error, which was ignored", name)
        if failures:
            raise failures[0]
        return error_of_callback if reached else await inner()

    return proceed
