"""The context of a trace: which span is current, and what messages bring along and take with them.

In a message it is that of W3C Trace Context, as ``traceparent`` and ``tracestate``. Most messages
of a busy system are in traces that are not sampled: these are recognised without asking the SDK.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TraceFlags

HEADERS = ("traceparent", "tracestate")
"""Where the context of a trace is, in the metadata or headers of a message."""

NOT_SAMPLED = ("-00", "-02")
"""How a ``traceparent`` of a trace that is not sampled ends."""

TRACEPARENT_LENGTH = 55

_LONGEST_HEADER = 512
_IDS_OF = r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-"
_CONTEXT = re.compile(_IDS_OF + "(0[0-3])")  # 1: it is sampled; 2: its id is random
_SAMPLED = re.compile(_IDS_OF + "0[13]")


@cache
def unsampled_spans() -> type[Any]:
    """The class of spans of messages whose traces are not sampled. They are made from what looks
    like a ``traceparent``, which is read only if somebody asks for it.

    A function, because OpenTelemetry is imported only where it is used.
    """
    from opentelemetry.trace import (
        INVALID_SPAN_CONTEXT,
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
    )

    class Unsampled(NonRecordingSpan):
        __slots__ = ("text",)  # is set by who makes one: without a constructor in between
        text: str

        def __init__(self) -> None:
            pass

        def get_span_context(self) -> SpanContext:
            found = _CONTEXT.fullmatch(self.text)
            if found is None:
                return INVALID_SPAN_CONTEXT
            trace_id, span_id, flags = found.groups()
            return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags)))

        def __repr__(self) -> str:
            return f"Unsampled({self.text!r})"

    return Unsampled


@cache
def unsampled_contexts() -> type[Any]:
    """The class of contexts of OpenTelemetry that hold nothing but the span of a message whose
    trace is not sampled. The span is made when somebody looks: nearly always, nobody does.

    Whoever makes one sets its ``text``: the ``traceparent``. It reads like any other context.
    """
    from opentelemetry.context import Context

    spans, new = unsampled_spans(), cast("Any", object.__new__)
    key = span_key()

    class UnsampledContext(Context):
        __slots__ = ("span", "text")
        text: str
        span: Any

        def filled(self) -> dict[str, object]:
            """The same as an ordinary dictionary."""
            try:
                span = self.span
            except AttributeError:
                span = self.span = new(spans)
                span.text = self.text
            return {key: span}

        def get(self, name: str, default: Any = None, /) -> Any:
            return self.filled().get(name, default)

        def copy(self) -> dict[str, object]:
            return self.filled()

        def keys(self) -> Any:
            return self.filled().keys()

        def values(self) -> Any:
            return self.filled().values()

        def items(self) -> Any:
            return self.filled().items()

        def __getitem__(self, name: str) -> Any:
            return self.filled()[name]

        def __contains__(self, name: object) -> bool:
            return name == key

        def __iter__(self) -> Iterator[str]:
            return iter((key,))

        def __reversed__(self) -> Iterator[str]:
            return iter((key,))

        def __len__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return self.filled() == (other.copy() if isinstance(other, dict) else other)

        def __ne__(self, other: object) -> bool:
            return not self == other

        def __or__(self, other: Any) -> Any:
            return self.filled() | other

        def __ror__(self, other: Any) -> Any:
            return other | self.filled()

        def __repr__(self) -> str:
            return repr(self.filled())

        def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any:
            return Context, (self.filled(),)

    return UnsampledContext


@cache
def span_key() -> str:
    """The name of the current span in OpenTelemetry's context."""
    from opentelemetry import context, trace

    (key,) = trace.set_span_in_context(trace.INVALID_SPAN, context.Context())
    return key


def is_sampled(text: str) -> bool:
    """Is this a valid ``traceparent`` of a trace that is sampled?"""
    return _SAMPLED.fullmatch(text) is not None


def is_valid(text: str) -> bool:
    """Is this a ``traceparent``?"""
    return _CONTEXT.fullmatch(text) is not None


def traceparent(known: SpanContext) -> str:
    """The context of a span, as a message carries it."""
    trace_id, span_id = known.trace_id.to_bytes(16, "big"), known.span_id.to_bytes(8, "big")
    return f"00-{trace_id.hex()}-{span_id.hex()}-{known.trace_flags:02x}"


class TraceContexts:
    """Reads and sets the current span, and the context of a trace in metadata.

    OpenTelemetry keeps its context in a context variable, which is found by setting it. So that
    reading and setting it takes one call instead of five; where there is none (another
    implementation was configured), OpenTelemetry is asked.
    """

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.nothing = context.Context()
        self.no_parent = trace.INVALID_SPAN
        self.attach, self.detach = context.attach, context.detach
        self.unsampled_span = unsampled_spans()
        self.unsampled_context = unsampled_contexts()
        self._with_span = trace.set_span_in_context
        self._no_span = trace.NonRecordingSpan
        self._make = _maker()
        self._new: Any = object.__new__
        self._flags = tuple(trace.TraceFlags(number) for number in range(4))
        self._w3c = TraceContextTextMapPropagator()
        self.context: Callable[[dict[str, object]], Context] = context.Context
        self.key = span_key()
        self._variable = _variable_of_opentelemetry()
        self.set: Callable[[Context], Any] = (
            self.attach if self._variable is None else self._variable.set
        )
        """Makes a context the current one. Gives a token to ``leave``."""
        self._reset: Callable[[Any], Any] = (
            self.detach if self._variable is None else self._variable.reset
        )
        self.get: Callable[[Context], Context] = (
            (lambda _: context.get_current()) if self._variable is None else self._variable.get
        )
        """The current context; the given one if none was ever set."""

    def current(self) -> Span | None:
        """The current span, if there is one."""
        span = cast("Span | None", self.get(self.nothing).get(self.key))
        return None if span is self.no_parent else span

    def with_only(self, span: Span) -> Context:
        """A context that has nothing but this span."""
        return self.context({self.key: span})

    def set_only(self, variables: Variables, span: Span) -> None:
        """Have these context variables hold this span, and nothing else of OpenTelemetry."""
        variables.run(self.set, self.context({self.key: span}))

    def inject(self, span: Span, carrier: MutableMapping[str, Any]) -> None:
        """Write the context of a span into the metadata of a message."""
        known = span.get_span_context()
        if known.is_valid:
            carrier["traceparent"] = traceparent(known)
            if known.trace_state:
                carrier["tracestate"] = known.trace_state.to_header()

    def leave(self, token: Any) -> None:
        """Make what was current before the current one again."""
        try:
            self._reset(token)
        except (ValueError, RuntimeError):  # of another task: OpenTelemetry logs it
            self.detach(token)

    def attach_with(self, span: Span) -> Any:
        """Make a span the current one. Gives the token to ``leave`` or ``detach``."""
        variable = self._variable
        if variable is None or variable.get(self.nothing):
            return self.attach(self._with_span(span))
        return variable.set(self.context({self.key: span}))

    def read(self, metadata: Mapping[str, Any]) -> Any:
        """What nearly every message brings, read in a fraction of the time: the span of a trace
        that is not sampled, or the context of one that is. None for all else."""
        text: Any = metadata.get("traceparent")
        if type(text) is not str or "tracestate" in metadata:
            return None
        found = _CONTEXT.fullmatch(text)
        if found is None:
            return None
        if text[54] in "02":
            return self.unsampled_of(text)
        return self._made_of(found, True)

    def unsampled_of(self, text: str) -> Any:
        """The span of a trace that is not sampled. Whether its ids are valid is found out by
        whoever asks."""
        span = self._new(self.unsampled_span)
        span.text = text
        return span

    def context_of(self, text: str, remote: bool) -> SpanContext:
        """What a ``traceparent`` says, which is valid."""
        trace_id, span_id, flags = text[3:35], text[36:52], text[54]
        return self._make(int(trace_id, 16), int(span_id, 16), remote, self._flags[int(flags)])

    def _made_of(self, found: re.Match[str], remote: bool) -> SpanContext:
        trace_id, span_id, flags = found.groups()
        return self._make(int(trace_id, 16), int(span_id, 16), remote, self._flags[int(flags)])

    def extracted(self, metadata: Mapping[str, Any] | None) -> Context:
        """The context that a message brings. Never that of the slot, which is another message's."""
        if not metadata or "traceparent" not in metadata:
            return self.nothing
        found = self.read(metadata)
        if found is not None:
            span = found if type(found) is self.unsampled_span else self._no_span(found)
            return self.with_only(span)
        carrier = {
            name: value
            for name in HEADERS
            if isinstance(value := metadata.get(name), str) and len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self.nothing)

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled; None if it may be."""
        found = self.read(metadata) if metadata else None
        return found if type(found) is self.unsampled_span else None


@cache
def _maker() -> Callable[[int, int, bool, TraceFlags], SpanContext]:
    """``SpanContext`` for valid ids. It is a tuple, so it is made as one, in a third of the time,
    if that is the same."""
    from opentelemetry.trace import SpanContext, TraceFlags

    new = cast("Callable[..., Any]", getattr(tuple, "__new__"))  # noqa: B009 - generic otherwise
    state: Any = SpanContext(1, 2, True).trace_state

    def quick(trace_id: int, span_id: int, remote: bool, flags: TraceFlags) -> SpanContext:
        return new(SpanContext, (trace_id, span_id, remote, flags, state, True))

    usual = SpanContext(7, 8, True, TraceFlags(1))
    try:
        made = quick(7, 8, True, TraceFlags(1))
        names = ("trace_id", "span_id", "is_remote", "trace_flags", "trace_state", "is_valid")
        same = made == usual and all(getattr(made, one) == getattr(usual, one) for one in names)
    except (TypeError, AttributeError):
        same = False
    return quick if same else SpanContext


@cache
def _variable_of_opentelemetry() -> ContextVar[Context] | None:
    """The context variable that holds OpenTelemetry's context; None if there is none."""
    from opentelemetry import context

    mark = context.Context()
    variables = copy_context()
    variables.run(context.attach, mark)
    return next((one for one, value in variables.items() if value is mark), None)
