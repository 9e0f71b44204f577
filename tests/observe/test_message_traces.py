"""Traces of jobs, RPC, pub/sub and channels: one from the sender to the code that handles it."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import get_current_span

from matador.jobs import ActiveJob, Queue, Worker
from matador.observe import Tracing
from matador.testing import wait_for


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(tracer_provider=provider)


def trace_id() -> int:
    return get_current_span().get_span_context().trace_id


async def test_what_is_not_sampled_stays_so_and_keeps_its_ids() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider(ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(tracer_provider=provider)
    seen: list[Any] = []

    async def handle(job: ActiveJob[Any]) -> None:
        seen.append((job.metadata["traceparent"], get_current_span().get_span_context()))

    async with Queue("emails", hooks=[tracing]) as queue:
        await queue.add("welcome", 1)
        async with Worker(queue, handle, hooks=[tracing]):
            await wait_for(lambda: len(seen) == 1)
    ((parent, context),) = seen
    assert parent == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert not context.trace_flags.sampled
    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize("parent", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", ""])
async def test_odd_contexts_of_senders_begin_a_new_trace(
    tracing: Tracing, exported: InMemorySpanExporter, parent: str
) -> None:
    ran: list[int] = []

    async def handle(job: ActiveJob[Any]) -> None:
        ran.append(trace_id())

    async with Queue("emails") as queue:
        await queue.add("welcome", 1, metadata={"traceparent": parent})
        async with Worker(queue, handle, hooks=[tracing]):
            await wait_for(lambda: len(exported.get_finished_spans()) == 1)
    (span,) = exported.get_finished_spans()
    assert span.parent is None
    assert ran == [span.context.trace_id if span.context else 0]
