"""Light spans are what the SDK would have made, and the SDK makes them where they would not be."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from tests.support.shop import QUEUE, TOPOLOGY, OrderPaid, OrderPlaced, settled, subscribed

from matador import DontRetry, Envelope, Hooks, Matador, Schema
from matador.events.hooks import WorkerSuccess
from matador.model.message import Message
from matador.observe import PrometheusMetrics, Tracing, light_spans, trace_context
from matador.observe.light_spans import LightSpans, work_here
from matador.observe.spans import Spans

LIGHT = "LightSpan"


class Early(SpanProcessor):
    """Looks at spans that begin, so that the SDK has to make them."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def on_start(self, span: sdk.Span, parent_context: Context | None = None) -> None:
        self.kinds.append(type(span).__name__)


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def providing(exported: InMemorySpanExporter, **options: Any) -> TracerProvider:
    options = {"resource": Resource({"service.name": "shop"}), **options}
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider


def make_app(callback: Any, *hooks: Hooks) -> Matador:
    return Matador(
        "memory://",
        schema=Schema({OrderPlaced: [subscribed(callback)], OrderPaid: [subscribed(callback)]}),
        topology=TOPOLOGY,
        consume_from=["events"],
        hooks=hooks,
    )


async def touching(envelope: Envelope[Any]) -> None:
    """Does with the current span whatever can be done with it."""
    span = get_current_span()
    assert span.is_recording()
    match envelope.data.order_id:
        case "failed":
            raise DontRetry("no")
        case "touched":
            span.set_attribute("tenant", "acme")
            span.set_attributes({"items": [1, 2], "express": True})
            span.add_event("packed", {"boxes": 2}, timestamp=5)
            span.record_exception(ValueError("hm"), {"why": "so"}, timestamp=6, escaped=True)
            span.add_link(trace.SpanContext(1, 2, True), {"of": "another"})
            span.update_name("handle an order")
            span.set_status(StatusCode.OK)
        case "many":
            span.set_attributes({f"attribute-{number}": "x" * 50 for number in range(200)})
            for number in range(200):
                span.add_event(f"event-{number}", timestamp=7)
        case "parent":
            with trace.get_tracer("mine", tracer_provider=PROVIDERS[-1]).start_as_current_span(
                "inside"
            ):
                get_current_span().set_attribute("mine", True)
        case _:
            pass


PROVIDERS: list[TracerProvider] = []


def described(spans: Sequence[ReadableSpan]) -> list[Any]:
    """All that spans say, with numbers instead of ids, and without times."""
    numbers: dict[str, int] = {}
    found: list[Any] = []
    for span in sorted(spans, key=lambda one: one.start_time or 0):
        said: dict[str, Any] = json.loads(span.to_json())
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        del said["start_time"], said["end_time"]
        for event in said["events"]:
            if event["name"] == "exception" and event["timestamp"] > "1971":
                del event["timestamp"]
            event["attributes"].pop("exception.stacktrace", None)
        said["attributes"].pop("messaging.message.id", None)
        known = span.context
        assert known is not None
        for place, name in ((said["context"], "trace_id"), (said["context"], "span_id")):
            place[name] = numbers.setdefault(place[name], len(numbers))
        if said["parent_id"] is not None:
            said["parent_id"] = numbers.setdefault(said["parent_id"], len(numbers))
        dropped = span.dropped_attributes, span.dropped_events, span.dropped_links
        scope = span.instrumentation_scope
        assert scope is not None
        found.append((said, int(known.trace_flags), known.is_remote, dropped, scope.name))
    return found


async def spans_of(provider: TracerProvider, exported: InMemorySpanExporter) -> list[Any]:
    PROVIDERS.append(provider)
    exported.clear()
    async with make_app(touching, Tracing(tracer_provider=provider)) as app:
        for name in ("plain", "touched", "failed", "many", "parent"):
            await app.send(OrderPlaced(name))
            await settled(app)
        await app.send(OrderPlaced("plain"), correlation_id="c-1", metadata={"a": "b"})
        await app.send_many([OrderPlaced("plain"), OrderPaid("plain")])
        await settled(app)
        with provider.get_tracer("mine").start_as_current_span("around"):
            await app.send(OrderPlaced("plain"))
        await settled(app)
    return described(exported.get_finished_spans())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": ALWAYS_ON},
        {"sampler": ParentBased(TraceIdRatioBased(1.0))},
        {"span_limits": SpanLimits(max_span_attributes=3, max_events=2, max_attribute_length=10)},
        {"span_limits": SpanLimits(max_span_attributes=20, max_events=5)},
    ],
    ids=["default", "always on", "ratio", "low limits", "limits"],
)
async def test_they_say_what_the_sdks_own_spans_say(
    exported: InMemorySpanExporter, options: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "opentelemetry.attributes")
    usual = providing(exported, **options)
    early = Early()
    usual.add_span_processor(early)
    expected = await spans_of(usual, exported)
    assert set(early.kinds) == {"_Span"}
    assert await spans_of(providing(exported, **options), exported) == expected
    assert len(expected) >= 15


@pytest.fixture
def kinds() -> list[str]:
    """The kinds of spans that callbacks see."""
    return []


async def run(provider: Any, seen: list[str], number: int = 1) -> None:
    async def look(envelope: Envelope[Any]) -> None:
        seen.append(type(get_current_span()).__name__)

    async with make_app(look, Tracing(tracer_provider=provider), PrometheusMetrics()) as app:
        for _ in range(number):
            await app.send(OrderPlaced("o-1"))
        await settled(app)


async def test_they_are_used(kinds: list[str], exported: InMemorySpanExporter) -> None:
    assert work_here()
    await run(providing(exported), kinds)
    await run(providing(exported, sampler=ParentBased(TraceIdRatioBased(1.0))), kinds)
    assert kinds == [LIGHT, LIGHT]
    sent, process = exported.get_finished_spans()[:2]
    assert (sent.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.resource.attributes == {"service.name": "shop"}


async def test_processors_that_look_at_the_start_get_the_sdks_own(
    kinds: list[str], exported: InMemorySpanExporter
) -> None:
    provider = providing(exported)
    await run(provider, kinds)
    early = Early()
    provider.add_span_processor(early)
    await run(provider, kinds)
    assert kinds == [LIGHT, "_Span"]
    assert early.kinds == ["_Span", "_Span"]
    assert len(exported.get_finished_spans()) == 4


class Foreign(trace.TracerProvider):
    """A provider that is not the SDK's."""

    def __init__(self, inner: trace.TracerProvider) -> None:
        self.inner = inner

    def get_tracer(self, *arguments: Any, **more: Any) -> trace.Tracer:
        inner = self.inner.get_tracer(*arguments, **more)

        class ForeignTracer(trace.Tracer):
            def start_span(self, *arguments: Any, **more: Any) -> trace.Span:
                return inner.start_span(*arguments, **more)

            start_as_current_span: Any = inner.start_as_current_span

        return ForeignTracer()


@pytest.mark.parametrize("case", ["foreign", "patched tracer", "agent", "another SDK", "counted"])
async def test_where_they_might_differ_the_sdk_makes_spans(
    case: str, kinds: list[str], exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider: Any = providing(exported)
    match case:
        case "foreign":
            provider = Foreign(provider)
        case "patched tracer":
            tracer: Any = provider.get_tracer("matador")
            tracer.start_span = tracer.start_span
        case "agent":
            start: Any = sdk.Tracer.start_span

            def patched(*given: Any, **more: Any) -> Any:
                return start(*given, **more)

            monkeypatch.setattr(sdk.Tracer, "start_span", patched)
        case "another SDK":
            monkeypatch.setattr(light_spans, "work_here", lambda: False)
        case _:
            monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
            provider = providing(exported)
    await run(provider, kinds)
    assert kinds == ["_Span"]
    assert [one.name for one in exported.get_finished_spans()] == [
        "send order.placed",
        f"process {QUEUE}",
    ]


@pytest.mark.parametrize("broken", ["__init__", "end", "_readable_span"])
def test_an_sdk_that_works_in_another_way_is_noticed(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check: Any = work_here
    assert check.__wrapped__()
    light_spans._span_classes.cache_clear()

    def other(self: Any, *given: Any, **more: Any) -> Any:
        if broken == "__init__":
            raise TypeError("got an unexpected keyword argument 'limits'")
        return None

    monkeypatch.setattr(sdk.Span, broken, other)
    assert not check.__wrapped__()
    monkeypatch.undo()
    light_spans._span_classes.cache_clear()


class Asked(Sampler):
    """A sampler of a user's, which adds an attribute to every second span, and drops others."""

    def __init__(self) -> None:
        self.asked = 0

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Any = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        self.asked += 1
        if self.asked % 5 == 0:
            return SamplingResult(Decision.DROP)
        if self.asked % 7 == 0:
            return SamplingResult(Decision.RECORD_ONLY, attributes)
        more = {"asked": [self.asked]} if self.asked % 2 else {}
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {**(attributes or {}), **more})

    def get_description(self) -> str:
        return "AlwaysOnSampler"


async def test_a_sampler_of_your_own_is_asked_once_for_each_span(
    exported: InMemorySpanExporter,
) -> None:
    samplers = [Asked(), Asked()]
    usual = providing(exported, sampler=samplers[0])
    usual.add_span_processor(Early())
    expected = await spans_of(usual, exported)
    assert await spans_of(providing(exported, sampler=samplers[1]), exported) == expected
    assert samplers[0].asked == samplers[1].asked > 15
    # One inside a sampler of the SDK's is asked, too, whatever it says about itself.
    inside = Asked()
    await run(providing(exported, sampler=ParentBased(inside)), [], number=3)
    assert inside.asked == 3


class Counted(IdGenerator):
    """Ids that are not random."""

    def __init__(self) -> None:
        self.last = 0

    def generate_span_id(self) -> int:
        self.last += 1
        return self.last

    def generate_trace_id(self) -> int:
        self.last += 1
        return self.last << 64


async def test_ids_come_from_the_generator_of_the_provider(exported: InMemorySpanExporter) -> None:
    provider = providing(exported, id_generator=Counted())
    expected = providing(exported, id_generator=Counted())
    root = expected.get_tracer("x").start_span("x").get_span_context()
    await run(provider, [])
    sent, process = exported.get_finished_spans()
    assert sent.context is not None
    assert process.context is not None
    assert (sent.context, int(sent.context.trace_flags)) == (root, int(root.trace_flags))
    assert process.context.trace_id == root.trace_id
    assert process.context.span_id != root.span_id


def a_light_span(provider: TracerProvider) -> Any:
    known = trace.SpanContext(1, 2, False, trace.TraceFlags(1))
    about = {"one": 1}
    return LightSpans(provider.get_tracer("matador"), Spans(None).contexts).start(
        "name", SpanKind.CONSUMER, about, known, None
    )


def test_a_span_that_has_ended_does_not_change(
    exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    span = a_light_span(providing(exported))
    span.end()
    assert not span.is_recording()
    span.set_attribute("late", True)
    span.add_event("late")
    span.update_name("late")
    span.end()
    (done,) = exported.get_finished_spans()
    assert (done.name, dict(done.attributes or {}), done.events) == ("name", {"one": 1}, ())
    assert (span.name, dict(span.attributes), span.end_time) == ("name", {"one": 1}, done.end_time)
    assert sum("ended span" in record.getMessage() for record in caplog.records) == 4


def test_it_is_a_context_manager_and_has_no_other_attributes(
    exported: InMemorySpanExporter,
) -> None:
    span = a_light_span(providing(exported))
    assert not hasattr(span, "something")
    assert "name" in repr(span)
    with pytest.raises(ValueError, match="no"), span:
        raise ValueError("no")
    (done,) = exported.get_finished_spans()
    assert done.status.status_code == StatusCode.ERROR
    assert [event.name for event in done.events] == ["exception"]


@pytest.mark.parametrize("found", [True, False], ids=["context variable", "API"])
async def test_the_current_span_is_found_however_opentelemetry_keeps_it(
    found: bool, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found:
        assert trace_context._variable_of_opentelemetry() is not None
    else:
        monkeypatch.setattr(trace_context, "_variable_of_opentelemetry", lambda: None)
    contexts = Spans(None).contexts
    assert contexts.current() is None
    provider = providing(exported, sampler=ParentBased(TraceIdRatioBased(0.5)))
    seen: dict[str, bool] = {}

    async def look(envelope: Envelope[Any]) -> None:
        current = get_current_span().get_span_context()
        parent = str(envelope.docket.metadata["traceparent"])
        assert f"{current.trace_id:032x}" == parent.split("-")[1]
        seen[parent] = current.trace_flags.sampled

    async with make_app(look, Tracing(tracer_provider=provider)) as app:
        for _ in range(60):
            await app.send(OrderPlaced("o-1"))
            assert contexts.current() is None
        await settled(app)
    assert set(seen.values()) == {True, False}
    assert len(exported.get_finished_spans()) == 2 * sum(seen.values())


@pytest.mark.parametrize(
    "claimed",
    ["00-" + "x" * 49 + "-00", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "é" * 52 + "-02"],
)
async def test_a_context_that_cannot_be_read_is_not_passed_on(
    claimed: str, exported: InMemorySpanExporter
) -> None:
    seen: list[tuple[bool, str]] = []

    async def look(envelope: Envelope[Any]) -> None:
        valid = get_current_span().get_span_context().is_valid
        seen.append((valid, str(envelope.docket.metadata["traceparent"])))
        if len(seen) == 1:
            await app.send(OrderPaid("o-1"))

    provider = providing(exported, sampler=ParentBased(TraceIdRatioBased(0.0)))
    app = make_app(look, Tracing(tracer_provider=provider))
    async with app:
        order = await app.plan_send(OrderPlaced("o-1"))
        (one,) = order.outgoing
        assert one.message is not None
        docket = b'"metadata":{"traceparent":"' + claimed.encode() + b'"}}}'
        body = one.message.body.removesuffix(b"}}") + b"," + docket
        await app.transport.send([Message("m-1", QUEUE, body, one.message.headers)])
        await settled(app)
    (first, given), (second, sent) = seen
    assert (first, given) == (False, claimed)
    assert second
    assert sent != claimed


class Told(Hooks):
    def on_worker_success(self, event: WorkerSuccess) -> None: ...


@pytest.mark.parametrize("hooks", [[], [Told()]], ids=["short", "long"])
async def test_sends_that_fail_and_batches_have_spans_as_well(
    hooks: list[Hooks], exported: InMemorySpanExporter
) -> None:
    provider = providing(exported)
    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [subscribed(touching)]}),
        topology=TOPOLOGY,
        hooks=[Tracing(tracer_provider=provider), *hooks],
        send_errors="report",
    )
    async with app:
        await app.transport.disconnect()
        await app.send(OrderPlaced("o-1"))
        await app.send_many([OrderPlaced("o-1"), OrderPlaced("o-2")])
    single, batch = exported.get_finished_spans()
    assert single.status.status_code == batch.status.status_code == StatusCode.ERROR
    assert [event.name for event in single.events] == ["exception"]
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
