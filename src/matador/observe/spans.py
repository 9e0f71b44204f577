"""Spans of OpenTelemetry for messages, and the context of a trace in their metadata.

The context is that of W3C Trace Context, as ``traceparent`` and ``tracestate``. Most messages of a
busy system are in traces that are not sampled: these are recognised without asking the SDK, which
takes several times as long.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from random import getrandbits
from typing import TYPE_CHECKING, Any, cast

from matador.errors import MissingExtraError
from matador.model.text import error_text
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

SCOPE = "matador"
"""The name of the instrumentation."""

HEADERS = ("traceparent", "tracestate")
"""Where the context of a trace is, in the metadata or headers of a message."""

_LONGEST_HEADER = 512
_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}
_IDS_OF = r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-"
_UNSAMPLED = re.compile(_IDS_OF + "0[02]")  # with flag 2, the id is random
_CONTEXT = re.compile(_IDS_OF + "(0[0-3])")
_FOLLOWS = "remoteParentNotSampled:AlwaysOffSampler"
_RATIO = re.compile(r"ParentBased\{root:TraceIdRatioBased\{([\d.e-]+)\},.*\}")
_IDS = 1 << 64  # the ratio is taken of this many trace ids
_BITS = 192  # of a trace id and the id of a span; that one of them is zero will not happen
_SDK_IDS = "opentelemetry.sdk.trace.id_generator"


@cache
def unsampled_spans() -> type[Any]:
    """The class of spans of messages whose traces are not sampled. They are made from a valid
    ``traceparent``, which is read only if somebody asks for it.

    A function, because OpenTelemetry is imported only where it is used.
    """
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    class Unsampled(NonRecordingSpan):
        def __init__(self, traceparent: str) -> None:
            self.traceparent = traceparent

        def get_span_context(self) -> SpanContext:
            text = self.traceparent
            flags = TraceFlags(int(text[53:], 16))
            return SpanContext(int(text[3:35], 16), int(text[36:52], 16), True, flags)

        def __repr__(self) -> str:
            return f"Unsampled({self.traceparent!r})"

    return Unsampled


class _GivenIds:
    """The ids of new spans: those of another generator, or a trace id that was chosen before."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._given = threading.local()
        self.generate_span_id: Callable[[], int] = inner.generate_span_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def are_random(self) -> bool:
        """Are they the SDK's own: random numbers?"""
        kind = cast("type[Any]", type(self._inner))
        return (kind.__module__, kind.__name__) == (_SDK_IDS, "RandomIdGenerator")

    def generate_trace_id(self) -> int:
        """The id that was given in this thread, or a new one."""
        given: int = getattr(self._given, "id", 0)
        if given:
            self._given.id = 0
        return given or self._inner.generate_trace_id()

    def give(self, trace_id: int) -> None:
        """Have the next trace of this thread use this id."""
        self._given.id = trace_id


class Spans:
    """Makes spans, and carries their contexts in messages.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtraError("Tracing", "otel") from error
        self._provider = provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._global_provider = trace.get_tracer_provider
        self._span_context, self._no_span = trace.SpanContext, trace.NonRecordingSpan
        self._some_flags, self._not_sampled = trace.TraceFlags, trace.TraceFlags(0)
        self._no_parent = trace.INVALID_SPAN
        self._unsampled = unsampled_spans()
        self._failed = trace.StatusCode.ERROR
        self._w3c = TraceContextTextMapPropagator()
        self._ids: _GivenIds | None = None
        self._bound = 0
        self._draws = False
        self.follows = False
        self.nothing = context.Context()
        self.attach, self.detach = context.attach, context.detach
        self.in_context = trace.set_span_in_context
        self.current = trace.get_current_span
        self.producer, self.consumer = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
        self.client, self.server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER

    def prepare(self) -> None:
        """Find out what the SDK drops anyway. It is set up by now. Idempotent."""
        if self._ids is not None:
            return
        provider: Any = self._global_provider() if self._provider is None else self._provider
        sampler: Any = getattr(provider, "sampler", None)
        describe = getattr(sampler, "get_description", None)
        if type(sampler).__module__ != "opentelemetry.sdk.trace.sampling" or describe is None:
            return  # a sampler of your own is asked for each span
        said = str(describe())
        self.follows = _FOLLOWS in said
        tracer: Any = self._tracer if self._provider is not None else provider.get_tracer(SCOPE)
        ratio = _RATIO.fullmatch(said)
        if ratio is None or not hasattr(tracer, "id_generator"):
            return
        ids: Any = tracer.id_generator  # the SDK may give all of us the same tracer
        self._tracer = tracer
        self._ids = ids if isinstance(ids, _GivenIds) else _GivenIds(ids)
        tracer.id_generator = self._ids  # of our own tracer: nobody else has it
        self._draws = self._ids.are_random()
        self._bound = round(float(ratio[1]) * _IDS)  # as TraceIdRatioBased does it

    def start(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        context: Context | None = None,
    ) -> Span:
        """Begin a span. Without a context, its parent is the current one.

        A new trace that the sampler would not sample, by its id, begins without the SDK. One that
        it would sample gets that id.
        """
        ids = self._ids
        if ids is not None and context is None and self.current() is self._no_parent:
            trace_id = ids.generate_trace_id()
            if trace_id & (_IDS - 1) >= self._bound:
                span_id = ids.generate_span_id()
                known = self._span_context(trace_id, span_id, False, self._not_sampled)
                return self._no_span(known)
            ids.give(trace_id)
        return self._tracer.start_span(name, context, kind, about)

    def inject(self, span: Span, carrier: MutableMapping[str, Any]) -> None:
        """Write the context of a span into the metadata of a message."""
        known = span.get_span_context()
        if known.is_valid:
            ids = f"{known.trace_id:032x}-{known.span_id:016x}"
            carrier["traceparent"] = f"00-{ids}-{int(known.trace_flags):02x}"
            if known.trace_state:
                carrier["tracestate"] = known.trace_state.to_header()

    def extracted(self, metadata: Mapping[str, Any] | None) -> Context:
        """The context that a message brings. Never that of the slot, which is another message's."""
        if not metadata or "traceparent" not in metadata:
            return self.nothing
        parent = metadata["traceparent"]
        if (
            "tracestate" not in metadata
            and isinstance(parent, str)
            and (found := _CONTEXT.fullmatch(parent)) is not None
        ):  # what nearly every message brings, read in a quarter of the time
            flags = self._some_flags(int(found[3], 16))
            known = self._span_context(int(found[1], 16), int(found[2], 16), True, flags)
            return self.in_context(self._no_span(known), self.nothing)
        carrier = {
            name: value
            for name in HEADERS
            if isinstance(value := metadata.get(name), str) and len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self.nothing)

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled; None if it may be.

        Only where the sampler does not sample what its sender did not (``follows``).
        """
        if not self.follows or not metadata or "tracestate" in metadata:
            return None
        parent = metadata.get("traceparent")
        if not isinstance(parent, str) or _UNSAMPLED.fullmatch(parent) is None:
            return None
        return self._unsampled(parent)

    def unsampled_send(self) -> str | None:
        """The ``traceparent`` of a send whose trace is not sampled; None if it may be.

        An id that is drawn here and would be sampled is used by the next trace of this thread: the
        span that the caller starts now.
        """
        parent: Any = self.current()
        if parent is not self._no_parent:
            return parent.traceparent if type(parent) is self._unsampled else None
        ids = self._ids
        if ids is None or not self._draws:
            return None
        drawn = getrandbits(_BITS)
        if (drawn >> 64) & (_IDS - 1) < self._bound:
            ids.give(drawn >> 64)
            return None
        digits = f"{drawn:048x}"
        return f"00-{digits[:32]}-{digits[32:]}-00"

    def record_error(self, span: Span, error: BaseException) -> None:
        """Note on a span that it failed, without secrets."""
        if not span.is_recording():
            return
        text = without_secrets(error_text(error))
        kind = type(error).__name__
        span.add_event("exception", {"exception.type": kind, "exception.message": text})
        span.set_attribute("error.type", kind)
        span.set_status(self._failed, text)


def attributes(transport: str, destination: str, operation: str) -> dict[str, Any]:
    """What a span says about a message, in the words of OpenTelemetry's conventions."""
    about: dict[str, Any] = {
        "messaging.system": _SYSTEMS.get(transport, transport),
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if destination:
        about["messaging.destination.name"] = destination
    return about
