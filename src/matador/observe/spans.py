"""Makes spans of OpenTelemetry for messages, each in as little time as its trace allows.

A trace that is not sampled needs no span, only a context that goes on. One that is sampled gets a
light span where the provider is the SDK's, and otherwise whatever the provider makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from random import getrandbits
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from matador.errors import MissingExtraError
from matador.model.text import error_text
from matador.observe.light_spans import LightSpans, light_spans
from matador.observe.sampling import TRACE_IDS, GivenIds, bound_of, follows_the_sender
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider

SCOPE = "matador"
"""The name of the instrumentation."""

Draw: TypeAlias = "Callable[[], str | int | SpanContext | None]"
"""See ``Spans.drawing``."""

_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}


class Spans:
    """Makes spans, and says what the messages of unsampled traces carry.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingExtraError("Tracing", "otel") from error
        from matador.observe.trace_context import TraceContexts, traceparent

        self.contexts = TraceContexts()
        self._provider = provider
        self._tracer: Any = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._global_provider = trace.get_tracer_provider
        self._span_of = trace.get_current_span
        self._span_context, self._no_span = trace.SpanContext, trace.NonRecordingSpan
        self._flags = tuple(trace.TraceFlags(number) for number in range(4))
        self._failed = trace.StatusCode.ERROR
        self._traceparent = traceparent
        self._light: LightSpans | None = None
        self._ids: GivenIds | None = None  # None: the tracer makes all spans
        self._bound: int | None = None  # None: the sampler is asked
        self._draws = False
        self.follows = False  # is what the sender did not sample never sampled?
        self._random = self._random_flag = 0
        self.producer, self.consumer = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
        self.client, self.server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER

    def prepare(self) -> None:
        """Find out what the SDK, which is set up by now, leaves to us. Idempotent."""
        if self._ids is not None:
            return
        provider: Any = self._global_provider() if self._provider is None else self._provider
        sampler: Any = getattr(provider, "sampler", None)
        self.follows = follows_the_sender(sampler)
        bound = bound_of(sampler)
        tracer: Any = self._tracer if self._provider is not None else provider.get_tracer(SCOPE)
        if not hasattr(tracer, "id_generator"):
            return
        light = light_spans(tracer)
        if light is None and bound is None:
            return
        ids: Any = tracer.id_generator  # the SDK may give all of us the same tracer
        self._tracer, self._light, self._bound = tracer, light, bound
        self._ids = ids if isinstance(ids, GivenIds) else GivenIds(ids)
        tracer.id_generator = self._ids  # of our own tracer: nobody else has it
        self._draws = bound is not None and self._ids.are_random()
        is_random = getattr(ids, "is_trace_id_random", None)
        if is_random is not None:  # the SDK says so in the flags of a trace
            self._random_flag = 2
            self._random = 2 if is_random() else 0

    # -- spans ------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        context: Context | None = None,
    ) -> Span:
        """Begin a span. Without a context, its parent is the current one."""
        light, bound, ids = self._light, self._bound, self._ids
        if light is not None and not light.is_ready():
            light = None
        known = self._span_of(context).get_span_context()
        parent = known if known.is_valid else None
        if ids is None or (light is None and (bound is None or parent is not None)):
            return self._tracer.start_span(name, context, kind, about)
        trace_id = ids.generate_trace_id() if parent is None else parent.trace_id
        recorded = sampled = clean = True
        state: Any = None if parent is None else parent.trace_state
        if bound is None:
            asked: Any = self._tracer.sampler
            result: Any = asked.should_sample(context, trace_id, name, kind, about, ())
            recorded, sampled = result.decision.is_recording(), result.decision.is_sampled()
            clean, about, state = result.attributes == about, result.attributes, result.trace_state
        elif parent is None:
            recorded = sampled = trace_id & TRACE_IDS < bound
        else:
            recorded = sampled = parent.trace_flags.sampled
        if not recorded:
            return self._no_span(self._context(trace_id, parent, sampled, state))
        if light is None:
            ids.give(trace_id)
            return self._tracer.start_span(name, context, kind, about)
        own = self._context(trace_id, parent, sampled, state)
        return light.start(name, kind, about, own, parent, clean=clean)

    def _context(
        self, trace_id: int, parent: SpanContext | None, sampled: bool, state: Any = None
    ) -> SpanContext:
        """The context of a new span."""
        random = self._random if parent is None else parent.trace_flags & self._random_flag
        flags = self._flags[random | sampled]
        ids = cast("GivenIds", self._ids)
        return self._span_context(trace_id, ids.generate_span_id(), False, flags, state)

    def _sampled(self, trace_id: int, parent: SpanContext | None) -> SpanContext:
        """``_context`` of a span that is sampled, in a trace without a state."""
        if not self._draws:
            return self._context(trace_id, parent, True)
        random = self._random if parent is None else parent.trace_flags & self._random_flag
        return self.contexts.make(trace_id, getrandbits(64), False, self._flags[random | 1])

    def record_error(self, span: Span, error: BaseException) -> None:
        """Note on a span that it failed, without secrets."""
        if not span.is_recording():
            return
        text = without_secrets(error_text(error))
        kind = type(error).__name__
        span.add_event("exception", {"exception.type": kind, "exception.message": text})
        span.set_attribute("error.type", kind)
        span.set_status(self._failed, text)

    # -- the short way, which most messages take --------------------------------------------------

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled, and will not be; None if it may be."""
        return self.contexts.unsampled(metadata) if self.follows else None

    def drawing(self) -> Draw | None:
        """A function that decides about a send: the ``traceparent`` if its trace is not sampled;
        the trace id or the parent if it is; None if ``start`` has to decide.

        None if it would always have to.
        """
        if self._bound is None:
            return None
        contexts = self.contexts
        get, nothing, key = contexts.get, contexts.nothing, contexts.key
        no_parent, unsampled = contexts.no_parent, contexts.unsampled_span
        bound, draws, write = self._bound, self._draws, self._traceparent

        def draw() -> str | int | SpanContext | None:
            span: Any = get(nothing).get(key)
            if type(span) is unsampled:
                known: str | None = span.traceparent
                if known is not None:
                    return known
                span = None
            if span is None or span is no_parent:
                if not draws:
                    return None
                trace_id = getrandbits(128)
                if trace_id & TRACE_IDS < bound:
                    return trace_id
                digits = trace_id.to_bytes(16, "big").hex()
                return f"00-{digits}-{digits[16:]}-00"  # nobody records this span
            parent = cast("SpanContext", span.get_span_context())
            if parent.trace_state or not parent.is_valid:
                return None
            return parent if parent.trace_flags.sampled else write(parent)

        return draw

    def light_send(
        self, name: str, about: Mapping[str, Any], of: int | SpanContext
    ) -> OpenSpan | None:
        """A light span around a send, of what was drawn; it is the current one from
        now on. None if ``start`` has to make it."""
        if self._light is None or not self._light.is_ready():
            self.keep(of)
            return None
        trace_id, parent = (of, None) if isinstance(of, int) else (of.trace_id, of)
        own = self._sampled(trace_id, parent)
        made = self._light.start(name, self.producer, about, own, parent)
        flags = own.trace_flags
        ids = f"{trace_id.to_bytes(16, 'big').hex()}-{own.span_id.to_bytes(8, 'big').hex()}"
        return OpenSpan(self, made, f"00-{ids}-0{flags}", self.contexts.attach_with(made))

    def keep(self, of: int | SpanContext) -> None:
        """Have the span that this thread starts next use what was drawn."""
        if isinstance(of, int):
            cast("GivenIds", self._ids).give(of)

    def light_attempt(
        self, variables: Variables, name: str, about: Mapping[str, Any], parent: SpanContext
    ) -> OpenSpan | None:
        """A light span around an attempt; None if ``start`` has to make it."""
        light = self._light
        if self._bound is None or light is None or not light.is_ready():
            return None
        own = self._sampled(parent.trace_id, parent)
        made = light.start(name, self.consumer, about, own, parent)
        self.contexts.set_only(variables, made)
        return OpenSpan(self, made)


class OpenSpan:
    """A light span around a send or an attempt. See ``Surrounding``."""

    __slots__ = ("_spans", "_token", "span", "traceparent")

    def __init__(self, spans: Spans, span: Span, traceparent: str = "", token: Any = None) -> None:
        self._spans, self._token = spans, token
        self.span, self.traceparent = span, traceparent

    def finish(self, error: BaseException | None) -> None:
        """End the span."""
        if self._token is not None:
            self._spans.contexts.detach(self._token)
        if error is not None:
            self._spans.record_error(self.span, error)
        self.span.end()


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
