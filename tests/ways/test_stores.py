"""Stores that messages depend on: what is stored is used, and an outage costs no attempt (F37)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.redis import OwnServer
from tests.ways.places import place_on
from tests.ways.test_admission import deduplication, twice
from tests.ways.ways import ALL, IN_PROCESS, PIPELINE, Call, Facts, Jobs, Way, over

from matador import DoRetry, MemoryCheckpointStore, RedisCheckpointStore, StandardRetryPolicy
from matador.runtime import dedup, steps
from matador.runtime.dedup import MemoryDuplicateStore
from matador.runtime.redis_dedup import RedisDuplicateStore
from matador.testing import wait_for

BAD, GOOD = 1, 2
ONCE = StandardRetryPolicy(max_attempts=1)
"""One attempt, so that one that was counted wrongly would be a dead letter."""


class Outage:
    """Fails some calls of one kind."""

    def __init__(self, where: str, times: int) -> None:
        self._where, self.left = where, times

    def __call__(self, where: str) -> None:
        if where == self._where and self.left:
            self.left -= 1
            raise OSError("the store is away")


class Duplicates(MemoryDuplicateStore):
    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage

    async def begin(self, key: str, owner: str, lease: float) -> bytes | bool:
        self._outage("begin")
        return await super().begin(key, owner, lease)

    async def finish(self, key: str, owner: str, result: bytes, ttl: float) -> bool:
        self._outage("finish")
        return await super().finish(key, owner, result, ttl)


class Checkpoints(MemoryCheckpointStore):
    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage

    async def load(self, envelope_id: str) -> Mapping[str, bytes]:
        self._outage("load")
        return await super().load(envelope_id)

    async def save(self, envelope_id: str, step: str, value: bytes) -> None:
        self._outage("save")
        await super().save(envelope_id, step, value)


@over(also=[Call], transports=IN_PROCESS)
@pytest.mark.parametrize(
    ("where", "patience"),
    [("begin", 0.01), ("begin", 10.0), ("finish", 0.01)],
    ids=["begin-released", "begin-waited-for", "finish"],
)
async def test_a_store_of_duplicates_that_is_away(
    way: Way, where: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_PATIENCE", patience)
    outage, facts, id_ = Outage(where, 2), Facts(), twice(way)
    ran: list[int] = []

    async def handle(n: int, ctx: Any) -> int:
        ran.append(n)
        return n * 10

    remembering = deduplication(way, store=Duplicates(outage))
    options = {"deduplication": remembering, "retry": ONCE, "hooks": facts}
    async with way.receiving(handle, **options) as receiver:
        first = await way.send(BAD, id=id_)
        await wait_for(lambda: facts.of(BAD))
        assert outage.left == 0
        again = await way.send(BAD, id=id_)  # its result was stored before the acknowledgement
        await way.send(GOOD)
        await wait_for(lambda: len(facts.of(BAD)) == 2 and facts.of(GOOD))
        assert receiver.metrics().duplicates == 1
        assert receiver.metrics().messages_failed == 0
        assert await way.dead_letters() == []
        if isinstance(way, Call):
            assert (first, again) == (10, 10)
        if isinstance(way, Jobs) and way._sender.capabilities.results:
            jobs = await way._sender.get_many([first.id, again.id])
            assert [job and job.result for job in jobs] == [10, 10]
    assert ran == [BAD, GOOD]
    assert [one.attempt for one in facts.of(BAD)] == [1, 1]


OFTEN = 7
"""More often than a message may be delivered."""


@over(also=[Call])
async def test_a_message_that_goes_back_often_is_neither_poisoned_nor_redelivered(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_PATIENCE", 0.0)
    outage, facts = Outage("begin", OFTEN * 2), Facts()
    ran: list[int] = []

    async def handle(n: int, ctx: Any) -> int:
        ran.append(n)
        return n

    remembering = deduplication(way, store=Duplicates(outage))
    options = {"deduplication": remembering, "retry": ONCE, "hooks": facts, "idempotent": "no"}
    async with way.receiving(handle, **options) as receiver:
        await way.send(BAD)
        await wait_for(lambda: facts.of(BAD), timeout=60)
        assert receiver.metrics().messages_failed == 0
        assert await way.dead_letters() == []
    assert ran == [BAD]
    assert outage.left == 0


@over(also=[Call], transports=IN_PROCESS)
async def test_a_message_delivered_at_most_once_is_not_lost_while_a_store_is_away(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_PATIENCE", 0.01)
    facts = Facts()
    ran: list[int] = []

    async def handle(n: int, ctx: Any) -> int:
        ran.append(n)
        return n

    remembering = deduplication(way, store=Duplicates(Outage("begin", 2)))
    options = {"deduplication": remembering, "delivery": "at-most-once", "hooks": facts}
    async with way.receiving(handle, **options):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: facts.of(BAD) and facts.of(GOOD))
        assert await way.dead_letters() == []
    assert sorted(ran) == [BAD, GOOD]


@over(also=[Call], transports=IN_PROCESS)
@pytest.mark.parametrize(
    ("where", "patience"),
    [("load", 0.01), ("load", 10.0), ("save", 0.01)],
    ids=["load-released", "load-waited-for", "save"],
)
async def test_a_checkpoint_store_that_is_away(
    way: Way, where: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_PATIENCE", patience)
    outage, facts = Outage(where, 2), Facts()
    store = Checkpoints(outage)
    charged: list[int] = []
    finished: list[int] = []

    async def handle(n: int, ctx: Any) -> int:
        await ctx.io("charge", lambda: charged.append(n))
        finished.append(n)
        return n

    options = {"idempotent": "resumable", "checkpoints": store, "retry": ONCE, "hooks": facts}
    async with way.receiving(handle, **options) as receiver:
        await way.send(BAD)
        await wait_for(lambda: facts.of(BAD))
        await way.send(GOOD)
        await wait_for(lambda: facts.of(GOOD))
        assert outage.left == 0
        assert receiver.metrics().messages_failed == 0
        assert await way.dead_letters() == []
        await wait_for(lambda: len(store) == 0)
    assert charged == [BAD, GOOD]
    assert finished == [BAD, GOOD]
    assert [(one.outcome, one.attempt) for one in facts.of(BAD)] == [("success", 1)]


@over(also=[Call], transports=PIPELINE)
async def test_a_step_runs_once_over_two_attempts(way: Way) -> None:
    facts, store = Facts(), MemoryCheckpointStore()
    ran: list[str] = []

    async def handle(n: int, ctx: Any) -> int:
        first = await ctx.io("first", lambda: ran.append(f"first-{n}") or n)
        assert first == n
        await ctx.all([("a", lambda: ran.append(f"a-{n}")), ("b", lambda: ran.append(f"b-{n}"))])
        if n == BAD and ctx.attempt == 1:
            raise DoRetry("again", delay=0.01)
        return n

    options = {"idempotent": "resumable", "checkpoints": store, "hooks": facts}
    async with way.receiving(handle, **options):
        await way.send(BAD)
        await way.send(GOOD)
        await wait_for(lambda: facts.outcomes(BAD) == ["retry", "success"] and facts.of(GOOD))
        await wait_for(lambda: len(store) == 0)
    assert sorted(ran) == sorted(f"{step}-{n}" for step in ("first", "a", "b") for n in (BAD, GOOD))


# -- a real store ---------------------------------------------------------------------------------

FIRST, SAVING, FINISHING, LATE = range(4)
"""Where a message is when the store goes away: done, in a step, behind it, or still on its way."""


class Charges:
    """A way in whose handler charges in a step, and waits at a gate in it or behind it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.facts = Facts()
        self.ran: list[int] = []
        self.charged: list[int] = []
        self.receiver: Any = None
        self.begin_anew()

    def begin_anew(self) -> None:
        self.at_gate: list[int] = []
        self.gate = asyncio.Event()
        self.received_before = 0 if self.receiver is None else self.received

    def send(self, n: int) -> asyncio.Task[Any]:
        return asyncio.create_task(self.way.send(n))

    @property
    def received(self) -> int:
        found: int = self.receiver.metrics().messages_received
        return found

    async def __call__(self, n: int, ctx: Any) -> int:
        async def charge() -> int:
            self.charged.append(n)
            if n % 10 == SAVING:
                await self._wait(n)
            return n

        self.ran.append(n)
        assert await ctx.io("charge", charge) == n
        if n % 10 == FINISHING:
            await self._wait(n)
        return n

    async def _wait(self, n: int) -> None:
        self.at_gate.append(n)
        await self.gate.wait()


@asynccontextmanager
async def charging(way: Way, url: str) -> AsyncGenerator[Charges]:
    """One that runs, with stores in a Redis."""
    way.tag = f"{way.place.tag}-{way.name}"  # channels of two kinds would share one
    run = Charges(way)
    stores = {
        "deduplication": deduplication(way, store=RedisDuplicateStore(url, prefix=way.tag)),
        "checkpoints": RedisCheckpointStore(url, prefix=way.tag),
    }
    options = {"idempotent": "resumable", "retry": ONCE, "hooks": run.facts}
    async with way.receiving(run, **options, **stores) as run.receiver:
        await way.send(FIRST)
        await wait_for(lambda: run.facts.of(FIRST))
        run.begin_anew()
        yield run
    await way.close()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["sqlite", "redis", "rabbitmq"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_all_ways_in_wait_for_their_stores_in_redis(
    how: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "_PATIENCE", 0.2)  # messages go back several times
    monkeypatch.setattr(steps, "_PATIENCE", 0.2)
    server = OwnServer(tmp_path)
    server.start()
    async with AsyncExitStack() as stack:
        stack.callback(server.stop, signal.SIGKILL)
        place = await stack.enter_async_context(place_on(transport, tmp_path))
        kinds = [kind for kind in (*ALL, Call) if transport not in kind.lacks]
        runs = [
            await stack.enter_async_context(charging(kind(place), server.url)) for kind in kinds
        ]
        for turn in (1, 2):
            numbers = [turn * 10 + where for where in (SAVING, FINISHING, LATE)]
            sent = [run.send(n) for run in runs for n in numbers[:2]]
            for run in runs:
                await wait_for(lambda run=run: len(run.at_gate) == 2)
            await asyncio.to_thread(server.freeze if how == "frozen" else server.stop)
            for run in runs:
                run.gate.set()
            sent += [run.send(numbers[2]) for run in runs]
            for run in runs:  # a server that is away refuses calls, so the message goes back
                deliveries = run.received_before + (3 if how == "frozen" else 5)
                await wait_for(lambda run=run, n=deliveries: run.received >= n, timeout=60)
            assert all(len(run.facts.attempts) == 3 * turn - 2 for run in runs)
            await asyncio.to_thread(server.thaw if how == "frozen" else server.start)
            for run in runs:
                await wait_for(lambda run=run, turn=turn: len(run.facts.attempts) > 3 * turn)
            await asyncio.gather(*sent)
            for run in runs:
                run.begin_anew()
        for run in runs:
            expected = [
                FIRST,
                *(turn + where for turn in (10, 20) for where in (SAVING, FINISHING, LATE)),
            ]
            assert sorted(run.ran) == sorted(run.charged) == expected, run.way.name
            assert [(one.outcome, one.attempt) for one in run.facts.attempts] == [
                ("success", 1)
            ] * len(expected), run.way.name
            assert await run.way.dead_letters() == []
