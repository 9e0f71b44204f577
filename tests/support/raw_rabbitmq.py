"""Odd entries for RabbitMQ, written byte by byte on a plain socket: all that the broker takes.

Client libraries write only what they think is right. A broker takes more: every type of field,
names that are no text, tables in tables, dates of the year 58,000, properties nobody sets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from random import Random
from struct import pack, unpack_from
from urllib.parse import unquote, urlsplit

GOOD_HEADERS = {
    "x-matador-event-key": "user.created",
    "x-matador-subscriber": "send-email",
    "x-matador-created-at": "2026-11-15T19:02:37.435Z",
    "x-matador-importance": "should-investigate",
}
GOOD_BODY = {"id": "raw", "data": {"number": -1}}

# -- bytes -----------------------------------------------------------------------------------------


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes((len(text),)) + text


def long(text: bytes) -> bytes:
    """A long string, or the inside of a table or an array."""
    return pack(">I", len(text)) + text


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    """One field of a table."""
    return short(name) + kind + value


@cache
def nested(depth: int, kind: bytes = b"F") -> bytes:
    """Tables in tables, or arrays in arrays: the value of the outermost."""
    value = b""
    for _ in range(depth):
        value = (short(b"n") if kind == b"F" else b"") + kind + long(value)
    return long(value)


def properties(headers: bytes | None = None, **given: bytes) -> bytes:
    """The properties of a message, encoded: ``headers`` is the inside of the table."""
    flags, written = 0, b""
    for place, name in enumerate(PROPERTIES):
        value = given.get(name)
        if name == "headers" and headers is not None:
            value = long(headers)
        if value is not None:
            flags |= 1 << (15 - place)
            written += value
    return pack(">H", flags) + written


PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

# -- oddities --------------------------------------------------------------------------------------

Value = Callable[[Random], tuple[bytes, bytes]]

VALUES: dict[str, Value] = {
    "boolean": lambda r: (b"t", bytes((r.choice([0, 1, 2, 255]),))),
    "signed byte": lambda r: (b"b", r.randbytes(1)),
    "byte": lambda r: (b"B", r.randbytes(1)),
    "signed short": lambda r: (b"s", r.randbytes(2)),
    "short": lambda r: (b"u", r.randbytes(2)),
    "signed int": lambda r: (b"I", r.choice([r.randbytes(4), pack(">i", -5)])),
    "int": lambda r: (b"i", r.randbytes(4)),
    "long": lambda r: (b"l", r.choice([r.randbytes(8), pack(">q", (1 << 63) - 1)])),
    "other long": lambda r: (b"L", r.randbytes(8)),
    "float": lambda r: (b"f", r.choice([r.randbytes(4), pack(">f", float("nan"))])),
    "double": lambda r: (b"d", r.choice([r.randbytes(8), pack(">d", float("inf"))])),
    "decimal": lambda r: (b"D", r.randbytes(5)),
    "text": lambda r: (b"S", long("ü漢😀\0".encode() * r.randrange(20))),
    "text that is none": lambda r: (b"S", long(b"\xff\xfe" + r.randbytes(9))),
    "surrogates": lambda r: (b"S", long(b"\xed\xa0\x80" * r.randrange(1, 4))),
    "long text": lambda r: (b"S", long(b"x" * _size(r, 1_000, 70_000, 120_000))),
    "array": lambda r: (b"A", long(b"V" * r.randrange(5) + b"t\1" + b"I" + r.randbytes(4))),
    "deep array": lambda r: (b"A", nested(r.choice([2, 100, 3_000]), b"A")),
    "seconds": lambda r: (b"T", pack(">Q", r.randrange(2_000_000_000))),
    "milliseconds": lambda r: (b"T", pack(">Q", 1_794_769_357_436 + r.randrange(1_000))),
    "no time": lambda r: (b"T", r.randbytes(8)),
    "table": lambda r: (b"F", long(field(b"a", b"S", long(b"b")) + field(b"a", b"V", b""))),
    "deep table": lambda r: (b"F", nested(r.choice([2, 100, 3_000]))),
    "nothing": lambda _: (b"V", b""),
    "bytes": lambda r: (b"x", long(r.randbytes(r.randrange(30)))),
    "an unknown type": lambda r: (r.choice([b"?", b"\0", b"Z", b"n"]), r.randbytes(4)),
}
NAMES = (
    b"x-odd",
    b"",
    b"\xff\xfe",
    b"n" * 255,
    b"CC",
    b"x-death",
    b"x-delivery-count",
    b"x-first-death-reason",
    b"x-matador-deliveries",
    b"x-matador-ordering-key",
    b"x-matador-correlation-id",
    b"x-matador-first-error",
    b"x-matador-attempts",
    b"x-matador-created-at",
    b"x-matador-dead-letter-reason",
    b"x-matador-\xff",
    b"matador-delay-4",
    b"x-delay",
)


def entry(random: Random, number: int = 0) -> tuple[str, bytes, bytes]:
    """An entry: what is odd about it, its properties and its body."""
    told: list[str] = []
    headers: bytes | None = b""
    if random.random() < 0.7:
        headers = b"".join(
            field(name.encode(), b"S", long(text.encode())) for name, text in GOOD_HEADERS.items()
        ) + field(b"x-matador-attempts", b"I", pack(">i", 1))
    for _ in range(random.choice([0, 1, 1, 1, 2, 5])):
        name, kind = random.choice(NAMES), random.choice(list(VALUES))
        odd = field(name, *VALUES[kind](random))
        for _ in range(random.choice([1, 1, 1, 2])):
            headers = random.choice([headers + odd, odd + headers])
        told.append(f"header {name[:30]!r} is {kind}")
    if random.random() < 0.05:
        headers, told = None, ["no headers"]
    given = {name: value for name in PROPERTIES if (value := _property(random, name, told))}
    body, what = _body(random, number)
    told.append(what)
    return "; ".join(told), properties(headers, **given), body


def _property(random: Random, name: str, told: list[str]) -> bytes | None:
    if name == "headers" or random.random() < 0.7:
        return None
    if name == "delivery_mode":
        value = bytes((random.choice([0, 1, 2, 255]),))
    elif name == "priority":
        value = random.randbytes(1)
    elif name == "timestamp":
        value = random.choice([random.randbytes(8), pack(">Q", 1_794_769_357_436)])
    elif name == "expiration":
        value = short(b"%d" % random.randrange(3_600_000, 1 << 31))
    elif name == "user_id":
        value = short(random.choice([b"guest", b"somebody"]))
    else:
        choices = [b"", b"x", b"\xff\xfe", "ü".encode() * 127, b"y" * 255, b"\0\r\n\x1b[2J"]
        value = short(random.choice(choices))
    told.append(f"{name} {value[:20]!r}")
    return value


def _body(random: Random, number: int) -> tuple[bytes, str]:
    good = json.dumps({**GOOD_BODY, "id": f"raw-{number}"}).encode()
    long_key = b'"' + b"k" * _size(random, 10, 70_000, 200_000) + b'":1,'
    return random.choice(
        [
            (good, "good body"),
            (good, "good body"),
            (b"", "no body"),
            (random.randbytes(random.randrange(1, 300)), "bytes"),
            (b"{" + long_key * 2 + b'"id":"a","data":{}}', "a key twice"),
            (b'{"id":"' + b"i" * 300 + b'","data":{}}', "a long id"),
            (b'{"id":"a","data":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "deep"),
            (good.replace(b"-1", b'"\\udcff"'), "a surrogate"),
            (b"x" * _size(random, 1_000, 131_064, 131_072, 400_000), "as large as a frame"),
        ]
    )


def _size(random: Random, usual: int, *large: int) -> int:
    """Large ones now and then: a hundred thousand entries have to fit on a disk."""
    return random.choice(large) if random.random() < 0.05 else usual


# -- the broker ------------------------------------------------------------------------------------


class RefusedError(Exception):
    """The broker does not take it, and has closed the channel or the connection."""


class RawRabbitMQ:
    """Writes entries into queues: see ``matador.testing.compliance.raw.RawEntries``."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "localhost", parts.port or 5672
        self._login = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self._vhost = unquote(parts.path[1:]) or "/"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0

    async def write(self, queue: str, random: Random) -> str:
        """Store one odd entry; what the broker refuses is another one's turn."""
        while True:
            self._number += 1
            told, odd, body = entry(random, self._number)
            try:
                await self.publish(queue, odd, body)
            except RefusedError:
                continue
            return told

    async def publish(
        self, queue: str, properties: bytes, body: bytes, *, exchange: str = ""
    ) -> None:
        """Store exactly this, confirmed.

        Raises:
            RefusedError: the broker does not take it.
        """
        if self._writer is None:
            await self._connect()
        assert self._writer is not None
        method = pack(">HHH", 60, 40, 0) + short(exchange.encode()) + short(queue.encode()) + b"\1"
        header = pack(">HHQ", 60, 0, len(body)) + properties
        frames = [_frame(1, 1, method), _frame(2, 1, header)]
        most = 131_072 - 8
        frames += [_frame(3, 1, body[at : at + most]) for at in range(0, len(body), most)]
        self._writer.write(b"".join(frames))
        try:
            answer = await self._answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            answer = b""
        if answer[:4] != pack(">HH", 60, 80):
            await self.close()
            raise RefusedError(repr(answer[:200]))

    async def close(self) -> None:
        """Disconnect."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                return

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._writer.write(b"AMQP\0\0\x09\1")
        await self._answer()
        user, password = self._login
        login = long(f"\0{user}\0{password}".encode())
        self._send(0, 10, 11, long(b"") + short(b"PLAIN") + login + short(b"en_US"))
        channels, size, _ = unpack_from(">HIH", await self._answer(), 4)
        self._send(0, 10, 31, pack(">HIH", channels, size, 0))
        self._send(0, 10, 40, short(self._vhost.encode()) + b"\0\0")
        await self._answer()
        self._send(1, 20, 10, b"\0")
        await self._answer()
        self._send(1, 85, 10, b"\0")
        await self._answer()

    def _send(self, channel: int, class_: int, method: int, rest: bytes) -> None:
        assert self._writer is not None
        self._writer.write(_frame(1, channel, pack(">HH", class_, method) + rest))

    async def _answer(self) -> bytes:
        """The next method of the broker's."""
        assert self._reader is not None
        while True:
            kind, _, size = unpack_from(">BHI", await self._reader.readexactly(7))
            payload = (await self._reader.readexactly(size + 1))[:-1]
            if kind == 1:
                return payload


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
