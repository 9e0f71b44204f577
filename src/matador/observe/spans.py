"""Makes spans of OpenTelemetry for messages, each in as little time as its trace allows.

A trace that is not sampled needs no span, only a context that goes on. One that is sampled gets a
light span where the provider is the SDK's, and otherwise whatever the provider makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context as Variables
from typing import TYPE_CHECKING, Any, cast

from matador.errors import MissingExtraError
from matador.events.short_forms import Surrounding
from matador.model.envelope import Docket
from matador.observe.light_spans import LightSpans, light_spans
from matador.observe.sampling import TRACE_IDS, DrawnIds, GivenIds, bound_of, follows_the_sender

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, SpanKind, TracerProvider

SCOPE = "matador"
"""The name of the instrumentation."""


_TRACE_ID = 32  # digits


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
        self._traceparent = traceparent
        self._light: LightSpans | None = None
        self._ids: GivenIds | None = None  # None: the tracer makes all spans
        self._bound: int | None = None  # None: the sampler is asked
        self.drawn: DrawnIds | None = None
        """New ids; None if they are not random, or the sampler has to be asked."""
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
        light = light_spans(tracer, self.contexts)
        if light is None and bound is None:
            return
        ids: Any = tracer.id_generator  # the SDK may give all of us the same tracer
        self._tracer, self._light, self._bound = tracer, light, bound
        self._ids = ids if isinstance(ids, GivenIds) else GivenIds(ids)
        tracer.id_generator = self._ids  # of our own tracer: nobody else has it
        if bound is not None and self._ids.are_random():
            self.drawn = DrawnIds(bound)
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

    # -- the short way, which most messages take --------------------------------------------------

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled, and will not be; None if it may be."""
        return self.contexts.unsampled(metadata) if self.follows else None

    @property
    def decides(self) -> bool:
        """Is it known what the sampler says, so that it need not be asked?"""
        return self._bound is not None

    def below(self, span: Span) -> str | SpanContext | None:
        """About a send below the current span: the ``traceparent`` if its trace is not sampled; the
        parent if it is; None if ``start`` has to decide. If it ``decides``."""
        parent = span.get_span_context()
        if parent.trace_state or not parent.is_valid:
            return None
        return parent if parent.trace_flags.sampled else self._traceparent(parent)

    def light_send(
        self, name: str, about: Mapping[str, Any], of: str | SpanContext
    ) -> Surrounding | None:
        """A light span around a send, in a trace with this id or below this parent; it is the
        current one from now on. None if ``start`` has to make it."""
        light = self._light
        if light is None or not light.is_ready():
            self.keep(of)
            return None
        if isinstance(of, str):
            own = f"00-{of}-{self._span_id()}-0{self._random | 1}"
            made = light.begin(name, self.producer, about, own, None)
        else:
            flags = of.trace_flags & self._random_flag | 1
            own = f"00-{of.trace_id:032x}-{self._span_id()}-0{flags}"
            made = light.begin(name, self.producer, about, own, of)
        made.light_token = self.contexts.attach_with(made)
        return made

    def keep(self, of: str | SpanContext) -> None:
        """Have the span that this thread starts next use the trace id that was drawn."""
        if isinstance(of, str):
            cast("GivenIds", self._ids).give(int(of, 16))

    def light_attempt(
        self,
        variables: Variables,
        name: str,
        about: Mapping[str, Any],
        message_id: str,
        docket: Docket,
        of: str,
    ) -> Surrounding | None:
        """A light span around an attempt, in a trace with this id, or below this ``traceparent``
        that is sampled. None if ``start`` has to make it."""
        light = self._light
        if light is None or self._bound is None or not light.is_ready():
            return None
        if len(of) == _TRACE_ID:
            own, parent = f"00-{of}-{self._span_id()}-0{self._random | 1}", None
        else:
            flags = int(of[-1]) & self._random_flag | 1
            own, parent = f"{of[:36]}{self._span_id()}-0{flags}", of
        made = light.begin(name, self.consumer, about, own, parent, message_id, docket)
        variables.run(self.contexts.set, self.contexts.context({self.contexts.key: made}))
        return made

    def _span_id(self) -> str:
        if self.drawn is not None:
            return self.drawn.span()
        return f"{cast('GivenIds', self._ids).generate_span_id():016x}"
