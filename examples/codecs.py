"""Codecs: JSON, MessagePack, and either of them compressed."""

import asyncio

import msgspec

from matador import (
    CompressedCodec,
    Envelope,
    JsonCodec,
    Matador,
    MessagePackCodec,
    Schema,
    event,
    subscriber,
)
from matador.codec import Codec
from matador.transports import MemoryTransport


@event("report.ready", description="A report was computed.")
class ReportReady(msgspec.Struct, frozen=True):
    title: str
    lines: list[str]


@subscriber(description="Print the report.", idempotent="yes")
async def print_report(envelope: Envelope[ReportReady]) -> None: ...


schema = Schema({ReportReady: [print_report]})
report = ReportReady("sales", [f"{month}: {month * 100}" for month in range(1, 13)] * 20)

# --8<-- [start:codecs]
codecs: dict[str, Codec] = {
    "JSON": JsonCodec(),
    "MessagePack": MessagePackCodec(),
    "JSON, gzip": CompressedCodec(JsonCodec(), "gzip", threshold=1024),
    "MessagePack, zstd": CompressedCodec(MessagePackCodec(), "zstd"),
}


async def size_of_a_message(codec: Codec) -> int:
    transport = MemoryTransport()
    async with Matador(transport, schema=schema, codec=codec) as app:
        await app.send(report)
        (message,) = [stored async for stored in transport.browse("matador.events")]
        return len(message.body)


# --8<-- [end:codecs]


async def main() -> None:
    for name, codec in codecs.items():
        print(f"{name:18} {await size_of_a_message(codec):>6,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
