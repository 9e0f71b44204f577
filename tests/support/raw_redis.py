"""Entries as a foreign program would put them into the keys of a queue on Redis."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import redis.asyncio
from redis.exceptions import ResponseError

from matador.transports.redis.topology import key_of

_NAMES = (b"i", b"b", b"h", b"p", b"k", b"r")
_FIXED = (
    b"",
    b"\x00",
    b"\xff\xfe\xfd",
    b"caf\xe9",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"1.5",
    b"NaN",
    b"-1",
    b"0x10",
    b"1_0",
    b"9" * 30,
    b"9" * 5000,
    b'"\\ud800"',
    b'{"a": 1, "a": 2}',
    b'{"a": 1.5}',
    b'{"a": null, "b": [1]}',
    b'{"a": "\\ud800"}',
    b'{"a": ' + b"9" * 400 + b"}",
    b'{"traceparent": 7, "x-matador-deliveries": -5}',
    b'{"x-matador-properties": "{}"}',
    b'{"x-matador-properties": {"type": "GREET"}}',
    b'{"x-matador-properties": "{\\"expires_at\\": 1e26, \\"type\\": \\"GREET\\"}"}',
    b'{"x-matador-properties": "' + b'{\\"a\\":' * 3000 + b"1" + b"}" * 3000 + b'"}',
    b"[" * 3000,
    b'{"a":' * 3000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b"x" * 200_000,
    "€\U0001f600\u2028".encode(),
)


def odd_bytes(random: Random) -> bytes:
    """Something that is hard to read, or is not."""
    kind = random.randrange(4)
    if kind == 0:
        return random.randbytes(random.randrange(40))
    if kind == 1:
        return b'{"%s": %d}' % (random.choice(_NAMES), random.randrange(-5, 10**12))
    return random.choice(_FIXED)


class RawStreams:
    """Writes to the keys of a queue of streams. See ``matador.testing.compliance.raw``."""

    def __init__(self, url: str, *, prefix: str = "matador") -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
        self._prefix = prefix

    async def write(self, queue: str, random: Random) -> str:
        base = key_of(self._prefix, queue)
        kinds: list[Callable[[str, Random], Any]] = [self._delayed, self._worn_out, self._future]
        kind = random.choice([*kinds, *[self._entry] * 7])
        return await kind(base, random)

    async def close(self) -> None:
        await self._client.aclose()

    async def _entry(self, base: str, random: Random) -> str:
        id_, said = await self._add(base, "*", random)
        return f"entry {id_}: {said}"

    async def _future(self, base: str, random: Random) -> str:
        """With an id of a time that is far away."""
        try:
            id_, said = await self._add(base, f"{random.randrange(1 << 45)}-0", random)
        except ResponseError:  # there is one behind it already
            id_, said = await self._add(base, "*", random)
        return f"entry {id_}: {said}"

    async def _worn_out(self, base: str, random: Random) -> str:
        """In hands that are gone, delivered as often as nothing can be."""
        id_, said = await self._add(base, "*", random)
        count = random.choice([0, 3, 10**6, 2**53, 2**62, 2**63 - 1])
        note = random.choice([b"1", b"-7", b"nan", b"9" * 40, b"\xff"])
        await self._client.hset(f"{base}:uncounted", f"0:{id_}", note)
        options = ("IDLE", 10**9, "RETRYCOUNT", count, "FORCE", "JUSTID")
        lane = (f"{base}:0", "matador")
        await self._client.execute_command(
            "XCLAIM", *lane, "ghost", 0, id_, *options, parse_justid=True
        )
        return f"entry {id_}, delivered {count} times, uncounted {note!r}: {said}"

    async def _delayed(self, base: str, random: Random) -> str:
        """Among the delayed ones, and due."""
        place = b"%016d" % random.randrange(10**15)
        fields: Any = [b"b", odd_bytes(random), b"h", odd_bytes(random)]
        packed = msgspec.msgpack.encode(
            random.choice(
                [
                    [0, fields],
                    [-3, fields],
                    ["x", fields],
                    [0, fields[:3]],
                    [0, []],
                    [0, [1, None, {"a": [2]}, 1.5]],
                    [0, {"b": "x"}],
                    [0, [b"many", b"x"] * 3000],
                    {"b": 1},
                    7,
                    None,
                ]
            )
        )
        whole = place + packed
        cut = whole[: random.randrange(len(whole))]
        member = random.choice([whole, whole, cut, packed, odd_bytes(random), place + b"\xc1"])
        member += b"~%d" % random.randrange(10**9)  # or it would be the same member again
        score = random.choice([0, -5, 1.5, 1e9, "-inf"])
        await self._client.execute_command("ZADD", f"{base}:delayed", score, member)
        return f"delayed, due {score}: {member[:80]!r}"

    async def _add(self, base: str, id_: str, random: Random) -> tuple[str, str]:
        fields: list[bytes] = []
        for name in (*_NAMES, b"z", odd_bytes(random)[:100]):
            for _ in range(random.choice([0, 1, 1, 1, 2])):
                fields += (name, odd_bytes(random))
        if random.random() < 0.005:
            fields += [b"many", b"x"] * 10_000
        if not fields:
            fields = [b"", b""]
        made = await self._client.execute_command("XADD", f"{base}:0", id_, *fields)
        return made.decode(), f"{b' '.join(fields)[:120]!r}"


class RawLists:
    """Writes to the keys of a queue of lists. See ``matador.testing.compliance.raw``."""

    def __init__(self, url: str, *, prefix: str = "matador") -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
        self._prefix = f"{prefix}-list"

    async def write(self, queue: str, random: Random) -> str:
        base = key_of(self._prefix, queue)
        element = odd_content(random)
        place = random.choice([b"7", b"0", b"-1", b"x", b"", b"9" * 30, b"9" * 16])
        count = random.choice([b"0", b"3", b"-3", b"x", b"", b"9" * 9, b"9" * 30])
        if random.random() < 0.7:
            element = place + b":" + count + b":" + element
        if random.random() < 0.2:
            element += b"~%d" % random.randrange(10**9)  # or it would be the same member again
            score = random.choice([0, -5, 1.5, 1e9, "-inf"])
            await self._client.execute_command("ZADD", f"{base}:delayed", score, element)
            return f"delayed, due {score}: {element[:80]!r}"
        await self._client.rpush(f"{base}:ready", element)
        return f"element {element[:80]!r}"

    async def close(self) -> None:
        await self._client.aclose()


class RawPubSub:
    """Publishes to the channel of a queue. See ``matador.testing.compliance.raw``."""

    def __init__(self, url: str, *, prefix: str = "matador") -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
        self._prefix = f"{prefix}-pubsub"

    async def write(self, queue: str, random: Random) -> str:
        content = odd_content(random)
        await self._client.publish(f"{self._prefix}:{queue}", content)
        return f"published {content[:80]!r}"

    async def close(self) -> None:
        await self._client.aclose()


def odd_content(random: Random) -> bytes:
    """A string where one with a line about itself and a body is expected."""
    about = b'{"i": %s, "h": %s, "p": %s, "k": %s}' % tuple(
        random.choice([b"null", b'"x"', b"7", b"{}", odd_bytes(random)]) for _ in range(4)
    )
    line = random.choice([about, about, odd_bytes(random), b'{"i": "x"}'])
    return line + random.choice([b"\n", b"\n", b"", b"\n\n"]) + odd_bytes(random)
