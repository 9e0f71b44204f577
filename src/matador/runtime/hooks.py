"""Hooks: notify logs, metrics, traces, the journal and user code of what happens.

Users subclass ``Hooks``. The runtime calls ``HookSet``, which is created at the start and contains
only the hooks that are overridden, so that an unused hook costs nothing. Messages sent and attempts
are reported in batches (``on_sent``, ``on_attempted``); hooks that are called once per message are
adapted here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from matador.errors import ConfigurationError
from matador.model.envelope import Envelope
from matador.model.message import ConnectionState
from matador.model.options import suggestion
from matador.model.signature import place_of
from matador.runtime.facts import Attempt, NotSent, Received, Sent, Way

log = logging.getLogger("matador.hooks")

T = TypeVar("T")

# -- the events -----------------------------------------------------------------------------------


class Sending(msgspec.Struct, frozen=True):
    """Messages are about to be sent, in one call.

    Attributes:
        way: the way in.
        operation: ``send``, ``publish`` or ``call``.
        names: the names of the messages, each once. See ``Sent.name``.
        receiver: where it is sent: the queue of a job or a call, the exchange, or empty for events,
            which have many receivers.
        count: the number of messages; of events, their number before the fan-out.
        transport: the name of the transport.
        metadata: empty; entries that a hook adds are sent with every message, unless the sender
            sets the same key.
    """

    way: Way
    operation: str
    names: tuple[str, ...]
    receiver: str
    count: int
    transport: str
    metadata: dict[str, Any]


class TransportFallback(msgspec.Struct, frozen=True):
    """A transport of a group failed, so a message was sent to the next one."""

    message_id: str
    queue: str
    failed: str
    next: str
    error: BaseException


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
"""Handles the message. Returns the error of the handler, if that failed."""


class Hooks:
    """Subclass it and override the hooks you need. Every hook may be sync or async.

    An error in a hook is logged and has no other effect. Several hook objects are called in the
    given order. Hooks that decide something (``get_…``) return None to leave the decision open.

    Example:
        >>> class Alerts(Hooks):
        ...     def on_worker_error(self, event: Attempt) -> None:
        ...         if event.subscriber and event.subscriber.importance == "must-investigate":
        ...             page_somebody(event.error)
        >>> app = Matador("memory://", schema=schema, hooks=[Alerts()])
    """

    def on_start(self) -> Any:
        """Called when a service with these hooks has started: an application, a worker, a server, …
        …"""

    def on_stop(self) -> Any:
        """Called when a service with these hooks has stopped."""

    def on_send_enter(self, event: Sending) -> Any:
        """A send begins. Sync. What it returns is passed to ``on_send_exit``.

        Both run in the task of the sender.
        """

    def on_send_exit(self, event: Sending, state: Any, error: BaseException | None) -> Any:
        """A send has ended, with ``error`` if it raised one. Sync."""

    def on_sent(self, batch: Sequence[Sent]) -> Any:
        """Messages were stored. Called once per batch, before the sender continues."""

    def on_attempted(self, batch: Sequence[Attempt]) -> Any:
        """Attempts ended and are settled. Called once per batch of settlements."""

    def on_enqueue_success(self, event: Sent) -> Any:
        """A message was stored. ``on_sent`` for one message."""

    def on_enqueue_warning(self, event: NotSent) -> Any:
        """A message was not stored as requested: in a fallback queue, without its delay, …"""

    def on_enqueue_error(self, event: NotSent) -> Any:
        """A message was not stored."""

    def on_transport_fallback(self, event: TransportFallback) -> Any:
        """A message was sent to the next transport of a group."""

    def on_worker_wrap(self, event: Received, proceed: Proceed) -> Any:
        """Called around the handling of a message: ``await proceed()`` handles it, once.

        ``proceed`` returns the error of the callback, or None. The retry policy decides about the
        message afterwards.
        """

    def on_worker_enter(self, event: Received) -> Any:
        """A handler begins. Sync: the cheaper form of ``on_worker_wrap``.

        What it returns is passed to ``on_worker_exit``. Both run in the context variables of the
        handler, so variables set here need not be reset.
        """

    def on_worker_exit(self, event: Received, state: Any, error: BaseException | None) -> Any:
        """A handler has ended, with ``error`` if it failed or was canceled. Sync."""

    def on_worker_before_process(self, event: Received) -> Any:
        """A message is about to be handled."""

    def on_worker_success(self, event: Attempt) -> Any:
        """A message was handled and settled. ``on_attempted`` for one success."""

    def on_worker_error(self, event: Attempt) -> Any:
        """A message failed, or was refused, and was settled."""

    def on_decode_error(self, event: Attempt) -> Any:
        """A message could not be decoded, and was settled."""

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
        """A mapping of metadata for every message. Events and send options override it."""

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
Tell: TypeAlias = Callable[[Sequence[T]], Awaitable[None] | None]
"""Reports a batch of facts to the hooks. Returns an awaitable if a hook is async."""


def hook_objects(given: object, where: str) -> tuple[Hooks, ...]:
    """Convert a value of ``hooks=``: one object, several, or none.

    Raises:
        ConfigurationError: one of them is not a ``Hooks`` object, or has a misspelled method.
    """
    if given is None:
        return ()
    found = cast("Sequence[object]", given) if isinstance(given, list | tuple) else (given,)
    for one in found:
        if not isinstance(one, Hooks):
            got, form = repr(one), "a subclass of Hooks with on_worker_success, …"
            if isinstance(one, type):
                got, form = f"the class {one.__name__}", f"hooks=[{one.__name__}()]"
            raise ConfigurationError(
                f"{where}: hooks= takes objects of subclasses of Hooks, such as "
                f"hooks=[Journal('journal/')], got {got}; write {form}"
            )
        for name in dir(type(one)):
            if name.startswith(_PREFIXES) and not hasattr(Hooks, name):
                raise ConfigurationError(
                    f"{where}: {type(one).__name__}.{name} is not a hook"
                    f"{suggestion(name, _HOOK_NAMES)}{place_of(getattr(type(one), name))}"
                )
    return cast("tuple[Hooks, ...]", tuple(found))


class HookSet:
    """The combined hooks of a service. A hook that is not overridden is None."""

    on_start: Emit | None = None
    on_stop: Emit | None = None
    on_enqueue_warning: Emit | None = None
    on_enqueue_error: Emit | None = None
    on_transport_fallback: Emit | None = None
    on_worker_before_process: Emit | None = None
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
        self.hooks = tuple(hooks)
        for name in HookSet.__annotations__:
            if functions := _overrides(hooks, name):
                combine = _COMBINE[name.partition("_")[0]]
                setattr(self, name, combine(name, functions))
        self.wraps: tuple[Callable[..., Any], ...] = tuple(_overrides(hooks, "on_worker_wrap"))
        self.around = _around("on_worker", hooks)
        self.send_around = _around("on_send", hooks)
        self.sent: Tell[Sent] | None = _teller(
            (*_batched("on_sent", hooks), *_one_by_one("on_enqueue_success", hooks, _always))
        )
        """Reports messages that were stored."""
        self.attempted: Tell[Attempt] | None = _attempt_teller(hooks)
        """Reports attempts that were settled."""
        self.hears_sends = not (
            self.sent is self.on_enqueue_warning is self.on_enqueue_error is None
        )
        """Whether a hook needs the facts of sends."""

    def also_tell(self, hook: Hooks) -> None:
        """Report attempts to another hook, from now on."""
        self.attempted = _attempt_teller((*self.hooks, hook))

    async def wrapped(self, event: Received, run: Proceed) -> None:
        """Handle a message inside every ``on_worker_wrap``, exactly once, even if hooks fail."""
        ran = False

        async def once() -> BaseException | None:
            nonlocal ran
            if ran:
                log.warning("on_worker_wrap called proceed() twice; the second call was ignored")
                return None
            ran = True
            return await run()

        proceed: Proceed = once
        for wrap in reversed(self.wraps):
            proceed = _wrapping("on_worker_wrap", wrap, event, proceed)
        await proceed()

    async def universal_metadata(self) -> dict[str, Any] | None:
        """The metadata for every message; None if no hook has any."""
        load = self.load_universal_metadata
        return None if load is None else await load() or None


_PREFIXES = ("on_", "get_", "load_")
_HOOK_NAMES = tuple(name for name in vars(Hooks) if name.startswith(_PREFIXES))
_ERRORS = (Exception, asyncio.CancelledError)
"""Exceptions that a hook may raise by itself, including the cancellation of something it awaits."""


# -- batches of facts -----------------------------------------------------------------------------


def _always(fact: Any) -> bool:
    return True


def _succeeded(fact: Attempt) -> bool:
    return fact.error is None and not fact.malformed


def _failed(fact: Attempt) -> bool:
    return fact.error is not None and not fact.malformed


def _malformed(fact: Attempt) -> bool:
    return fact.malformed


def _batched(name: str, hooks: Sequence[Hooks]) -> list[tuple[str, Callable[..., Any]]]:
    return [(name, function) for function in _overrides(hooks, name)]


def _one_by_one(
    name: str, hooks: Sequence[Hooks], wanted: Callable[[Any], bool]
) -> list[tuple[str, Callable[..., Any]]]:
    """Adapt hooks that are called for each message to batches."""

    def adapted(function: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
        def each(batch: Sequence[Any]) -> Awaitable[None] | None:
            waiting: list[Awaitable[Any]] = []
            for fact in batch:
                if wanted(fact):
                    _call(name, function, fact, waiting)
            return _all_of(name, waiting) if waiting else None

        return each

    return [(name, adapted(function)) for function in _overrides(hooks, name)]


def _attempt_teller(hooks: Sequence[Hooks]) -> Tell[Attempt] | None:
    return _teller(
        (
            *_batched("on_attempted", hooks),
            *_one_by_one("on_worker_success", hooks, _succeeded),
            *_one_by_one("on_worker_error", hooks, _failed),
            *_one_by_one("on_decode_error", hooks, _malformed),
        )
    )


def _teller(functions: Sequence[tuple[str, Callable[..., Any]]]) -> Tell[Any] | None:
    if not functions:
        return None

    def tell(batch: Sequence[Any]) -> Awaitable[None] | None:
        waiting: list[Awaitable[Any]] = []
        for name, function in functions:
            _call(name, function, batch, waiting)
        return _all_of(functions[0][0], waiting) if waiting else None

    return tell


def _call(
    name: str, function: Callable[..., Any], argument: Any, waiting: list[Awaitable[Any]]
) -> None:
    """Call a hook. An awaitable result is added to ``waiting``; an error is logged."""
    try:
        result = function(argument)
        if result is not None and inspect.isawaitable(result):
            waiting.append(result)
    except _ERRORS:
        log.exception("the hook %s raised an error, which was ignored", name)


async def _all_of(name: str, waiting: Sequence[Awaitable[Any]]) -> None:
    """Await async hooks concurrently, so that a slow one delays its batch only once."""
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, _ERRORS):
            log.error("the hook %s raised an error, which was ignored", name, exc_info=result)


# -- the other hooks ------------------------------------------------------------------------------


def _overrides(hooks: Sequence[Hooks], name: str) -> list[Callable[..., Any]]:
    default = getattr(Hooks, name)
    found: list[Callable[..., Any]] = []
    for hook in hooks:
        function = getattr(hook, name, None)
        if function is not None and getattr(function, "__func__", function) is not default:
            found.append(function)
    return found


def _is_its_own(error: BaseException) -> bool:
    """Whether the hook itself failed. A cancellation may come from its caller."""
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


class Around:
    """The ``enter`` and ``exit`` hooks of several objects. Exits come in the reverse order."""

    __slots__ = ("_name", "_pairs")

    def __init__(
        self, name: str, pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]
    ) -> None:
        self._name = name
        self._pairs = tuple(pairs)

    def enter(self, event: Any) -> list[Any]:
        """Call the ``enter`` hooks and return their results. If one raises, the error is logged and
        its ``exit`` is not called."""
        states: list[Any] = []
        for enter, _ in self._pairs:
            try:
                states.append(enter(event))
            except _ERRORS:
                log.exception("the hook %s_enter raised an error, which was ignored", self._name)
                states.append(_FAILED)
        return states

    def exit(self, event: Any, states: Sequence[Any], error: BaseException | None) -> None:
        """Call the ``exit`` hooks."""
        for (_, leave), state in zip(reversed(self._pairs), reversed(states), strict=True):
            if state is not _FAILED:
                try:
                    leave(event, state, error)
                except _ERRORS:
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
                    f"the hook {name}_{kind} must not be async{place_of(function)}"
                )
    pairs = [
        (getattr(one, f"{name}_enter"), getattr(one, f"{name}_exit"))
        for one in hooks
        if _overrides([one], f"{name}_enter") or _overrides([one], f"{name}_exit")
    ]
    return Around(name, pairs) if pairs else None


async def _answer(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a hook; None, with a log line, if it raises an error."""
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


def _wrapping(name: str, wrap: Callable[..., Any], event: Received, inner: Proceed) -> Proceed:
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
