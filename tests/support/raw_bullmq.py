"""Jobs as a foreign program writes them into BullMQ's keys: odd in every part."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import redis.asyncio

from matador.transports.bullmq.wire import KEYS, bull_name

_PARENTS = (
    b'{"id":1}',
    b'{"id":{},"queueKey":[]}',
    b'{"id":"x","queueKey":"nowhere","fpof":true}',
    b'{"queueKey":7,"cpof":1}',
)
_ODD: tuple[bytes, ...] = (
    *(b"", b" ", b"\0", b"\xff\xfe", b"\xed\xb3\xbf", b"nan", b"inf", b"-inf", b"1e400", b"-1"),
    *(b"9223372036854775807", b"-9223372036854775808", b"9" * 5000, b"0x10", b"1_0", b"1.5"),
    *(b"null", b"true", b"7", b'"text"', b"{", b"[]", b"{}", b'{"a":1,"a":2}', b'"\\ud800"'),
    *(b"[" * 3000, b'{"a":' * 3000, b"x" * 200_000, b'{"_jobData":1,"_metadata":[]}'),
    b'{"_jobData":"!","_metadata":{"encoding":"base64"}}',
    b'{"_jobData":{},"_metadata":{"encoding":"text","id":"m"}}',
    b'{"_jobData":{},"_metadata":{"id":7,"headers":{"a":[]},"priority":1e9}}',
    *(b'{"repeat":7}', b'{"repeat":{"pattern":"x","tz":"y"}}', b'{"removeOnComplete":[1]}'),
    *(b'{"removeOnComplete":{"count":-5,"age":1e300}}', b'{"removeOnFail":true}'),
    *_PARENTS,
)
_FIELDS = (
    *("name", "data", "opts", "timestamp", "delay", "priority", "atm", "ats", "stc", "parent"),
    *("parentKey", "deid", "rjk", "defa", "processedOn", "failedReason", "attemptsMade", "pb"),
    *("matador-kind", "matador-taken", "matador-counted", "returnvalue", "finishedOn", "nrjid"),
)
_IDS: tuple[Callable[[str], bytes], ...] = (
    lambda unique: unique.encode(),
    lambda unique: f"a:b:{unique}".encode(),
    lambda unique: f"repeat:clock:{unique}".encode(),
    lambda unique: b"\xff\x00\xfe" + unique.encode(),
    lambda unique: f"hex~{unique}".encode(),
    lambda unique: f"é \n\x1b[31m{unique}".encode(),
    lambda unique: unique.encode() * 200,
    lambda unique: str(int(unique, 16)).encode(),
)
_SIDE = ("lock", "dependencies", "processed", "failed", "unsuccessful", "logs")


class RawBullMQ:
    """Writes jobs past the transport. See ``matador.testing.compliance.raw.RawEntries``."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, protocol=2)  # pyright: ignore[reportUnknownMemberType]
        self._prefix = prefix

    async def write(self, queue: str, random: Random) -> str:
        """Store one job that is odd; says which, and how."""
        pipe = self._client.pipeline(transaction=True)
        base = f"{self._prefix}:{bull_name(queue)}:".encode()
        id_, how = _put_job(pipe, base, random)
        where = random.choice(["wait", "wait", "front", "prioritized", "delayed"])
        match where:
            case "wait":
                pipe.lpush(base + b"wait", id_)
            case "front":
                pipe.rpush(base + b"wait", id_)
            case "prioritized":
                pipe.zadd(base + b"prioritized", {id_: random.choice([-1, 1, 2**60])})
            case _:
                pipe.zadd(base + b"delayed", {id_: random.choice([0, 1, 2**40])})
        await pipe.execute()
        return f"{id_[:60]!r} in {where}: {', '.join(how)}"

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


def _put_job(pipe: Any, base: bytes, random: Random) -> tuple[bytes, list[str]]:
    if random.random() < 0.02:
        return random.choice(KEYS).encode(), ["the name of one of BullMQ's own keys"]
    id_ = random.choice(_IDS)(f"{random.getrandbits(64):016x}")
    if random.random() < 0.1:
        return id_, [_put_other(pipe, base + id_, random)]
    fields: dict[str, bytes] = {
        "name": b"order",
        "data": b'{"a":1}',
        "opts": b'{"attempts":3}',
        "delay": b"0",
        "timestamp": b"1700000000000",
        "priority": b"0",
    }
    how: list[str] = []
    for _ in range(random.randint(1, 4)):
        field = random.choice(_FIELDS)
        if field in fields and random.random() < 0.2:
            del fields[field]
            how.append(f"no {field}")
        else:
            fields[field] = random.choice(_PARENTS if field == "parent" else _ODD)
            how.append(f"{field} {fields[field][:30]!r}")
    if "deid" in fields and random.random() < 0.5:
        _put_other(pipe, base + b"de:" + fields["deid"], random)
        pipe.delete(base + b"dn:" + fields["deid"])
        pipe.hset(base + b"dn:" + fields["deid"], "opts", random.choice(_ODD))
    if random.random() < 0.2:
        side = random.choice(_SIDE)
        how.append(f":{side} {_put_other(pipe, base + id_ + b':' + side.encode(), random)}")
    if fields:
        pipe.hset(base + id_, mapping=fields)
    return id_, how or ["plain"]


def _put_other(pipe: Any, key: bytes, random: Random) -> str:
    """Make a key of another type than BullMQ's, or none at all."""
    pipe.delete(key)
    match kind := random.choice(["string", "list", "set", "zset", "stream", "hash", "none"]):
        case "string":
            pipe.set(key, random.choice(_ODD))
        case "list":
            pipe.rpush(key, b"x")
        case "set":
            pipe.sadd(key, b"x")
        case "zset":
            pipe.zadd(key, {b"x": 1})
        case "stream":
            pipe.xadd(key, {b"x": b"y"})
        case "hash":
            pipe.hset(key, "x", "y")
        case _:
            pass
    return f"a {kind}"
