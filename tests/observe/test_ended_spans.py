"""Spans that nobody has touched are read late, by the exporter, and say what the SDK's own say."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from tests.observe.test_light_spans import Early, make_app, spans_of
from tests.support.shop import OrderPlaced, settled

from matador import Envelope
from matador.observe import Tracing
from matador.observe.sampling import DrawnIds

HOUR = 3_600_000


class Batched:
    """A provider with a batch processor, which exports when it is told to."""

    def __init__(self, exported: InMemorySpanExporter | None = None, **options: Any) -> None:
        self.exported = exported or InMemorySpanExporter()
        sampler = ParentBased(TraceIdRatioBased(1.0))
        resource = Resource({"service.name": "shop"})
        self.provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        options = {"schedule_delay_millis": HOUR, **options}
        self.processor = BatchSpanProcessor(self.exported, **options)
        self.provider.add_span_processor(self.processor)

    def spans(self) -> tuple[ReadableSpan, ...]:
        assert self.provider.force_flush()
        return self.exported.get_finished_spans()

    async def send(self, number: int) -> None:
        async with make_app(nothing, Tracing(tracer_provider=self.provider)) as app:
            for _ in range(number):
                await app.send(OrderPlaced("o-1"))
            await settled(app)


async def nothing(envelope: Envelope[Any]) -> None: ...


@pytest.fixture
def batched() -> Iterator[Batched]:
    made = Batched()
    yield made
    made.provider.shutdown()


class Flushing(InMemorySpanExporter):
    """Gives what the batch processor of a provider has exported."""

    def __init__(self, batched: Batched) -> None:
        super().__init__()
        self.batched = batched

    def clear(self) -> None:
        self.batched.exported.clear()

    def get_finished_spans(self) -> tuple[ReadableSpan, ...]:
        return self.batched.spans()


async def test_they_say_what_the_sdks_own_spans_say(batched: Batched) -> None:
    usual = Batched()
    early = Early()
    usual.provider.add_span_processor(early)  # so that the SDK makes the spans
    expected = await spans_of(usual.provider, Flushing(usual))
    assert set(early.kinds) == {"_Span"}
    assert await spans_of(batched.provider, Flushing(batched)) == expected
    assert "EndedSpan" in {type(one).__name__ for one in batched.spans()}
    usual.provider.shutdown()


async def test_a_span_can_be_copied_and_shows_its_fields(batched: Batched) -> None:
    await batched.send(1)
    shown, copied = batched.spans()
    assert [type(one).__name__ for one in (shown, copied)] == ["EndedSpan"] * 2
    assert vars(shown)["_name"] == shown.name
    other = copy.copy(copied)
    assert type(other) is ReadableSpan
    assert other.to_json() == copied.to_json()
    assert (other.context, other.parent) == (copied.context, copied.parent)
    assert not hasattr(shown, "something")


class Gated(InMemorySpanExporter):
    """Exports once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        assert self.gate.wait(60)
        return super().export(spans)


async def test_a_full_batch_wakes_the_thread_and_a_full_queue_drops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gated = Gated()
    small = Batched(exported=gated, max_queue_size=8, max_export_batch_size=4)
    await small.send(2)
    assert await asyncio.to_thread(gated.asked.wait, 60)  # nobody has flushed
    await small.send(20)
    assert any("Queue full" in record.getMessage() for record in caplog.records)
    gated.gate.set()
    assert len(small.spans()) == 4 + 8
    small.provider.shutdown()


async def test_a_processor_that_was_shut_down_says_so(
    batched: Batched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    batched.provider.shutdown()
    await batched.send(1)
    assert any("Shutdown called" in record.getMessage() for record in caplog.records)
    assert batched.exported.get_finished_spans() == ()


class Own(BatchSpanProcessor):
    """Counts the spans that end."""

    ended = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.ended += 1
        super().on_end(span)


class Late(InMemorySpanExporter):
    """Notes which spans nobody has read before it gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.unread: list[bool] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.unread += [getattr(one, "light_span", None) is not None for one in spans]
        return super().export(spans)


async def test_nobody_reads_them_before_the_exporter() -> None:
    late = Late()
    made = Batched(exported=late)
    await made.send(3)
    names = {one.name for one in made.spans()}
    assert names == {"send order.placed", "process shop.events"}
    assert late.unread == [True] * 6
    made.provider.shutdown()


async def test_a_processor_that_is_added_later_gets_all_that_end_from_then_on(
    batched: Batched,
) -> None:
    own = Own(InMemorySpanExporter(), schedule_delay_millis=HOUR)

    async def add(envelope: Envelope[Any]) -> None:
        batched.provider.add_span_processor(own)

    async with make_app(add, Tracing(tracer_provider=batched.provider)) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert own.ended == 1  # the attempt, which had begun before
    assert len(batched.spans()) == 2
    own.shutdown()


def ids_of(drawn: DrawnIds, number: int = 200) -> set[str]:
    return {drawn.trace() for _ in range(number)} | {drawn.span() for _ in range(number)}


def test_ids_are_drawn_once_also_after_a_fork() -> None:
    drawn = DrawnIds(1 << 63)
    ours = ids_of(drawn, 10)  # leaves most of a block
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "\n".join(ids_of(drawn, 100)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = set(pipe.read().decode().split("\n"))
    assert os.waitpid(child, 0)[1] == 0
    ours |= ids_of(drawn)
    assert len(theirs) == 200
    assert len(ours) == 420
    assert not ours & theirs


@pytest.mark.parametrize(
    ("bound", "least", "most"), [(0, 0, 0), (1 << 64, 2000, 2000), (1 << 62, 350, 650)]
)
def test_as_many_traces_are_sampled_as_the_sampler_takes(bound: int, least: int, most: int) -> None:
    drawn = DrawnIds(bound)
    traces = [drawn.trace() for _ in range(2000)]
    sampled = [one for one in traces if len(one) == 32]
    assert least <= len(sampled) <= most
    assert all(int(one[16:], 16) < bound for one in sampled)
    for one in set(traces) - set(sampled):
        _, trace_id, _, flags = one.split("-")
        assert int(trace_id[16:], 16) >= bound
        assert flags == "00"
