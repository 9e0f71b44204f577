"""The scripts for plain jobs leave behind what BullMQ's own ones do, whatever they find.

Each scene is played twice, with our scripts and with BullMQ's alone, and all keys are compared.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
from tests.support.own_time import within
from tests.support.redis import OwnServer, forget_keys

from matador.errors import TransportError
from matador.model.message import Complete, Delivery, Message
from matador.transports.bullmq import BullMQTransport, plain
from matador.transports.bullmq.client import BullMQSession
from matador.transports.bullmq.sources import WaitingJobs

pytestmark = pytest.mark.broker

QUEUE = "work"


class Stage:
    """A job queue, and what anybody else sees of it."""

    def __init__(self, transport: BullMQTransport, client: Any, prefix: str) -> None:
        self.transport = transport
        self.client = client
        self.prefix = f"{prefix}:{QUEUE}"
        self.said: list[object] = []

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    async def add(self, *ids: str, **more: Any) -> None:
        """Add jobs; notes what came of them."""
        messages = [_job(id_, **more) for id_ in ids]
        outcomes = await self.transport.add_jobs(messages)
        self.said.append([None if one is None else type(one).__name__ for one in outcomes])

    async def take(self, most: int = 10) -> list[Delivery]:
        """Take jobs; notes which."""
        subscription = await self.transport.subscribe(QUEUE, prefetch=most)
        found: list[Delivery] = []

        async def receive() -> None:
            found.extend(await subscription.receive(most))
            while len(found) < most and await self._waiting():
                found.extend(await subscription.receive(most - len(found)))

        try:
            await within(0.5, receive())
        except (TimeoutError, TransportError) as error:
            self.said.append(type(error).__name__)
        await subscription.close()
        self.said.append([(one.headers.get("job.id"), one.body, one.problem) for one in found])
        return found

    async def _waiting(self) -> int:
        kinds = [await self.client.type(self.key(name)) for name in ("wait", "prioritized")]
        waiting = await self.client.llen(self.key("wait")) if kinds[0] == b"list" else 0
        return waiting + (kinds[1] == b"zset")

    async def complete(self, *deliveries: Delivery, result: bytes | None = None) -> None:
        """Complete jobs; notes what came of it."""
        settled = await self.transport.settle([Complete(one.receipt, result) for one in deliveries])
        self.said.append([None if one is None else type(one).__name__ for one in settled])

    async def prime(self) -> None:
        """Complete a first job: BullMQ's own script counts it."""
        await self.add("first")
        await self.complete(*await self.take())

    async def keys(self) -> dict[str, Any]:
        """All that the server has of the queue, without what differs each time."""
        found: dict[str, Any] = {}
        async for key in self.client.scan_iter(match=f"{self.prefix}:*"):
            name = key.decode().removeprefix(f"{self.prefix}:")
            if name not in ("stalled-check", "metrics:completed:data"):  # a time, what a minute had
                found[name] = await _value(self.client, key)
        return found


def _job(id_: str, **more: Any) -> Message:
    headers = {"job.id": id_, "job.name": "count", "job.maxAttempts": 3, "job.createdAt": 1}
    headers |= more.pop("headers", {})
    return Message(id_, QUEUE, b'{"_jobData":{"n":1}}', headers, **more)


async def _value(client: Any, key: bytes) -> object:
    match (await client.type(key)).decode():
        case "hash":
            fields = {name.decode(): value for name, value in (await client.hgetall(key)).items()}
            for name in ("timestamp", "processedOn", "finishedOn", "prevTS", "prevCount"):
                fields = {**fields, name: b"then"} if name in fields else fields
            if "opts" in fields:
                fields["opts"] = json.loads(fields["opts"])
            return fields
        case "list":
            return await client.lrange(key, 0, -1)
        case "set":
            return await client.smembers(key)
        case "zset":
            return [member for member, _ in await client.zrange(key, 0, -1, withscores=True)]
        case "stream":
            entries = [fields for _, fields in await client.xrange(key)]
            return [{k: v for k, v in one.items() if k != b"delay"} for one in entries]
        case "string" if key.endswith(b":lock"):
            return "held"
        case _:
            return await client.get(key)


Scene: TypeAlias = Callable[[Stage], Awaitable[None]]


# -- scenes ----------------------------------------------------------------------------------------


async def life(stage: Stage) -> None:
    await stage.add("a", "b", "c")
    first = await stage.take(2)
    await stage.complete(*first, result=b'{"is": "done"}')
    await stage.complete(*await stage.take())


async def held(stage: Stage) -> None:
    await stage.add("a", "b")
    await stage.take(1)


async def taken_ids(stage: Stage) -> None:
    await stage.add("a", "b", "a", "b", "c")
    await stage.add("c", "d")


async def options(stage: Stage) -> None:
    headers = {"job.maxAttempts": 7, "job.backoff": "fixed:250", "job.keepFailed": "count:5"}
    await stage.add("a", headers=headers)
    await stage.add("kept", headers={"job.keepCompleted": "all"})
    await stage.complete(*await stage.take())


async def not_plain(stage: Stage) -> None:
    await stage.add("later", delay=1000.0)
    await stage.add("unique", headers={"job.unique": "key"})
    await stage.add("unique-2", headers={"job.unique": "key"})
    await stage.add("lifo", headers={"job.providerOptions": '{"lifo":1}'})
    await stage.add("other", headers={"tenant": "blue"})
    for delivery in await stage.take():
        await stage.complete(delivery)


async def priorities(stage: Stage) -> None:
    await stage.add("a")
    await stage.add("first", priority=5)
    await stage.add("b")
    await stage.complete(*await stage.take())


async def paused(stage: Stage) -> None:
    await stage.add("a")
    await stage.transport.pause_jobs(QUEUE)
    await stage.add("b")
    await stage.take()
    await stage.transport.resume_jobs(QUEUE)
    await stage.complete(*await stage.take())


async def maxed(stage: Stage) -> None:
    await stage.client.hset(stage.key("meta"), "concurrency", 1)
    await stage.add("a", "b")
    await stage.complete(*await stage.take(1))


async def limited(stage: Stage) -> None:
    await stage.client.hset(stage.key("meta"), mapping={"max": 1, "duration": 60_000})
    await stage.add("a", "b")
    await stage.complete(*await stage.take())
    await stage.take()


async def due(stage: Stage) -> None:
    await stage.add("soon", delay=1000.0)
    await stage.client.zadd(stage.key("delayed"), {"soon": 1})
    await stage.add("a")
    await stage.complete(*await stage.take())


async def again(stage: Stage) -> None:
    await stage.add("a")
    for count in (b"2", b"many"):
        await stage.client.hset(stage.key("a"), "ats", count)
        (held,) = await stage.take()
        await stage.client.delete(stage.key("a:lock"))
        await stage.complete(held)
        await stage.client.rpoplpush(stage.key("active"), stage.key("wait"))


async def lost(stage: Stage) -> None:
    await stage.add("free", "others", "away", "gone", "kept")
    deliveries = await stage.take()
    await stage.client.delete(stage.key("free:lock"))
    await stage.client.set(stage.key("others:lock"), "somebody")
    await stage.client.lrem(stage.key("active"), 0, "away")
    await stage.client.delete(stage.key("gone"))
    await stage.complete(*deliveries)
    await stage.complete(*deliveries)


async def parents(stage: Stage) -> None:
    await stage.add("parent", "failed")
    deliveries = await stage.take()
    await stage.client.sadd(stage.key("parent:dependencies"), "child")
    await stage.client.zadd(stage.key("failed:unsuccessful"), {"child": 1})
    await stage.complete(*deliveries)


async def children(stage: Stage) -> None:
    await stage.add("child")
    parent = {"parentKey": stage.key("parent"), "parent": '{"id":"parent","queueKey":"x"}'}
    await stage.client.hset(stage.key("child"), mapping=parent)
    await stage.client.sadd(stage.key("parent:dependencies"), stage.key("child"))
    await stage.complete(*await stage.take())


async def odd_ids(stage: Stage) -> None:
    await stage.add("a", "text", "missing", "b")
    await stage.client.delete(stage.key("text"), stage.key("missing"))
    await stage.client.set(stage.key("text"), "not a job")
    await stage.client.rpush(stage.key("wait"), "meta", "0:0", "")
    deliveries = [*await stage.take(), *await stage.take()]
    await stage.complete(*(one for one in deliveries if one.problem is None))


def odd_key(name: str) -> Scene:
    async def scene(stage: Stage) -> None:
        for step in range(3):
            if step:
                await stage.client.delete(stage.key(name))
                await stage.client.set(stage.key(name), "odd")
            await stage.add(f"a-{step}")
            if name in ("wait", "active", "marker") and step:
                continue  # nothing can be taken from those
            await stage.complete(*await stage.take())

    scene.__name__ = f"odd_key[{name}]"
    return scene


SCENES: list[Scene] = [
    *(life, held, taken_ids, options, not_plain, priorities, paused, maxed, limited, due, again),
    *(lost, parents, children, odd_ids),
    *map(odd_key, ("events", "stalled", "id", "metrics:completed", "delayed", "prioritized")),
    *map(odd_key, ("wait", "marker")),
]


# -- playing ---------------------------------------------------------------------------------------


@asynccontextmanager
async def open_stage(server: OwnServer, client: Any, prefix: str) -> AsyncGenerator[Stage]:
    transport = BullMQTransport(f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}", lease=30)
    await transport.connect()
    await transport.open_jobs(QUEUE)
    try:
        yield Stage(transport, client, prefix)
    finally:
        await transport.disconnect()
        await forget_keys(server.url, prefix)


async def play(
    scene: Scene, server: OwnServer, client: Any, prefix: str
) -> tuple[list[object], dict[str, Any]]:
    async with open_stage(server, client, prefix) as stage:
        await stage.prime()
        await scene(stage)
        return stage.said, await stage.keys()


def _nothing(_: object) -> None:
    return None


def _name(scene: Scene) -> str:
    return scene.__name__


@pytest.fixture
def only_bullmq(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have BullMQ's own scripts do everything."""

    def apply() -> None:
        monkeypatch.setattr(plain, "options_of", _nothing)
        monkeypatch.setattr(plain, "can_complete", _nothing)
        monkeypatch.setattr(WaitingJobs, "_plain", False)

    return apply


@pytest.mark.parametrize("scene", SCENES, ids=_name)
async def test_plain_jobs_leave_what_bullmq_leaves(
    scene: Scene, server: OwnServer, client: Any, prefix: str, only_bullmq: Callable[[], None]
) -> None:
    ours, our_keys = await play(scene, server, client, prefix)
    only_bullmq()
    theirs, their_keys = await play(scene, server, client, prefix)
    assert ours == theirs
    assert our_keys == their_keys
    assert ours[0] == [None], "the first job was added"


async def test_plain_jobs_take_no_script_of_bullmq(
    server: OwnServer, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(server, client, prefix) as stage:
        await stage.prime()
        monkeypatch.setattr(BullMQSession, "run_grouped", _refuse)
        monkeypatch.setattr(WaitingJobs, "_take", _refuse)
        await life(stage)
        assert [done for done in stage.said if done == [None, None]], "two were completed at once"


async def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("a script of BullMQ is called")
