"""A shop in processes of its own, whose spans go to files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from matador import Context, Envelope, Matador, Schema, StandardRetryPolicy, Topology, subscriber
from matador import event as declare
from matador.observe import Tracing


@declare("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@declare("order.paid", description="A customer paid.")
@dataclass(frozen=True)
class OrderPaid:
    order_id: str


@subscriber(description="Charge the card.", idempotent="yes")
async def charge(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
    if envelope.docket.attempts == 1:
        raise ConnectionError("the gateway is down")
    await ctx.send(OrderPaid(envelope.data.order_id))


@subscriber(description="Ship it.", idempotent="yes")
def ship(envelope: Envelope[OrderPaid]) -> None:
    Path(os.environ["SHOP_DONE"]).write_text(envelope.data.order_id)


class FileExporter(SpanExporter):
    """Appends each span to a file, as a line of JSON."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._file.open("a") as out:
            for span in spans:
                out.write(json.dumps(json.loads(span.to_json(indent=None))) + "\n")
        return SpanExportResult.SUCCESS


def make_app(spans: str) -> Matador:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(spans)))
    return Matador(
        os.environ["SHOP_URL"],
        schema=Schema({OrderPlaced: [charge], OrderPaid: [ship]}),
        topology=Topology(os.environ["SHOP_NAME"], queues=["events"]),
        consume_from=["events"],
        retry=StandardRetryPolicy(base_delay=0),
        hooks=[Tracing(tracer_provider=provider)],
    )


async def produce(spans: str) -> None:
    async with make_app(spans).producer() as app:
        await app.send(OrderPlaced("o-1"), correlation_id="c-1")


if __name__ == "__main__":
    mode, file = sys.argv[1:]
    if mode == "produce":
        asyncio.run(produce(file))
    else:
        make_app(file).run()
