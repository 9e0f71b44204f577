"""Spans of OpenTelemetry for messages, and the context of a trace in their metadata.

The context is that of W3C Trace Context, as ``traceparent`` and ``tracestate``. Most messages of a
busy system are in traces that are not sampled: these are recognised without asking the SDK, which
takes several times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

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
_UNSAMPLED = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[02])")  # 2: the id is random
_FOLLOWS = "remoteParentNotSampled:AlwaysOffSampler"


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
        self._flags = {"00": trace.TraceFlags(0), "02": trace.TraceFlags(2)}
        self._failed = trace.StatusCode.ERROR
        self._w3c = TraceContextTextMapPropagator()
        self.nothing = context.Context()
        self.attach, self.detach = context.attach, context.detach
        self.in_context = trace.set_span_in_context
        self.current = trace.get_current_span
        self.producer, self.consumer = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
        self.client, self.server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER

    def follow_unsampled(self) -> bool:
        """Does the SDK drop every span whose parent, in another process, is not sampled?

        That is so by default. A sampler of your own is asked for each span.
        """
        provider = self._global_provider() if self._provider is None else self._provider
        sampler: Any = getattr(provider, "sampler", None)
        describe = getattr(sampler, "get_description", None)
        if type(sampler).__module__ != "opentelemetry.sdk.trace.sampling" or describe is None:
            return False
        return _FOLLOWS in str(describe())

    def start(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        context: Context | None = None,
    ) -> Span:
        """Begin a span. Without a context, its parent is the current one."""
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
        carrier = {
            name: value
            for name in HEADERS
            if isinstance(value := metadata.get(name), str) and len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self.nothing)

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled; None if it may be."""
        parent = metadata.get("traceparent") if metadata else None
        if not isinstance(parent, str) or metadata is None or "tracestate" in metadata:
            return None
        found = _UNSAMPLED.fullmatch(parent)
        if found is None:
            return None
        trace_id, span_id = int(found[1], 16), int(found[2], 16)
        if not trace_id or not span_id:
            return None
        return self._no_span(self._span_context(trace_id, span_id, True, self._flags[found[3]]))

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
