"""The dead letters of every way in: listed, counted, sent back, edited and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ways.ways import ALL, PLAIN, THOROUGH, Events, Facts, Jobs, PubSub, Way, over

from matador import DontRetry, MemoryCheckpointStore, StandardRetryPolicy
from matador.channels import QueueService, QueueSettings, Settings
from matador.errors import ConfigurationError, MatadorError
from matador.pubsub import Publisher, Subscriber
from matador.rpc import RpcClient
from matador.runtime.dead_letters import DeadLetterOffice, Selection
from matador.testing import wait_for

WAYS = [one for one in ALL if one is not Jobs]  # the failed jobs of a queue are its own business
QUICK = StandardRetryPolicy(base_delay=0.01)


class Broken:
    """Fails until it is repaired."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.ran: list[tuple[int, int]] = []

    async def __call__(self, n: int, ctx: Any) -> int:
        self.ran.append((n, ctx.attempt))
        if self.error is not None and n < 100:
            raise self.error
        return n


@over(ways=WAYS)
async def test_a_dead_letter_says_what_it_is_and_is_sent_back_as_if_it_were_new(way: Way) -> None:
    handle, facts = Broken(TimeoutError("the bank is closed")), Facts()
    async with way.receiving(handle, retry=QUICK, hooks=facts) as receiver:
        office: DeadLetterOffice = receiver.dead_letters
        await way.send(1)
        await wait_for(lambda: "dead-letter" in facts.outcomes(1))
        (letter,) = [one async for one in office.browse()]
        assert letter.id == facts.attempts[0].id
        assert (letter.kind, letter.name, letter.attempts) == (way.kind, way.called, 3)
        assert letter.receiver.rpartition(".")[2] in ("work", "thing", "happened")
        assert letter.payload == {"n": 1}
        assert letter.reason == "max attempts exceeded (3)"
        assert letter.error == "the bank is closed"
        assert letter.error_type == "TimeoutError"
        assert letter.problem is None
        assert not letter.held
        assert receiver.topology.full_name(letter.queue.name) == way.queue

        for chosen, number in (
            (None, 1),
            (Selection(kind="unhandled"), 0),
            (Selection(queue=way.queue), 1),
            (Selection(name=way.called, subscriber=letter.receiver), 1),
            (Selection(name="other"), 0),
            (Selection(subscriber="other"), 0),
            (Selection(error="BANK", error_type="TimeoutError"), 1),
            (Selection(error_type="ValueError"), 0),
            (Selection(where=lambda payload: payload["n"] > 1), 0),
            (Selection(ids=(letter.id[:20],), undecodable=False), 1),
            (Selection(exactly=frozenset({letter.id})), 1),
            (Selection(undecodable=True), 0),
        ):
            assert await office.count(chosen) == number, chosen

        (place,) = await office.choose(Selection(name=way.called))
        moved = await office.redrive([place])
        assert (moved.done, moved.failed) == (1, [])
        await wait_for(lambda: facts.outcomes(1).count("dead-letter") == 2)
        assert handle.ran == [(1, 1), (1, 2), (1, 3)] * 2, "a full set of attempts"
        assert {one.id for one in facts.attempts} == {letter.id}, "it keeps its id"

        handle.error = None
        assert (await office.redrive(Selection(error_type="TimeoutError"))).done == 1
        await wait_for(lambda: "success" in facts.outcomes(1))
        assert await office.count() == 0
        (last,) = [one for one in facts.attempts if one.outcome == "success"]
        left = [name for name in last.delivery.headers if name.startswith("x-")]
        assert not [name for name in left if "error" in name or "fail" in name or "dead" in name]


@over(ways=WAYS, transports=THOROUGH)
async def test_what_cannot_be_read_is_listed_and_goes_back_unchanged(way: Way) -> None:
    handle, facts = Broken(DontRetry("never")), Facts()
    async with way.receiving(handle, hooks=facts) as receiver:
        await way.store(way.message(body=b"{broken"))
        await wait_for(lambda: len(facts.attempts) == 1)
        office: DeadLetterOffice = receiver.dead_letters
        (letter,) = [one async for one in office.browse(Selection(undecodable=True))]
        assert letter.payload is None
        assert letter.problem
        assert letter.stored.body == b"{broken"
        assert (await office.redrive(await office.choose())).done == 1
        await wait_for(lambda: len(facts.attempts) == 2)
        assert facts.attempts[1].delivery.body == b"{broken"


@over(ways=WAYS, transports=THOROUGH)
async def test_a_payload_is_repaired_or_its_letter_deleted(way: Way) -> None:
    store, facts = MemoryCheckpointStore(), Facts()

    async def handle(n: int, ctx: Any) -> int:
        await ctx.io("step", lambda: n)
        if n < 100:
            raise DontRetry("too small")
        return n

    options: dict[str, Any] = {"idempotent": "resumable", "checkpoints": store, "hooks": facts}
    async with way.receiving(handle, **options) as receiver:
        for n in (1, 2):
            await way.send(n)
            await wait_for(lambda n=n: facts.outcomes(n) == ["dead-letter"])
        assert len(list(store)) == 2
        office: DeadLetterOffice = receiver.dead_letters
        chosen = Selection(where=lambda payload: payload["n"] == 1)

        for edited, expected, problem in (
            ({"n": "many"}, None, "n"),  # its type says what it may be
            ({"n": 100}, {"n": 7}, "changed"),
        ):
            (first,) = await office.choose(chosen)
            moved = await office.redrive_edited(first, edited, expected=expected)
            assert moved.done == 0
            assert problem in moved.failed[0][1]

        (first,) = await office.choose(chosen)
        assert (await office.redrive_edited(first, {"n": 100}, expected={"n": 1})).done == 1
        await wait_for(lambda: facts.outcomes(100) == ["success"])
        assert (await office.purge(Selection())).done == 1
        assert await office.count() == 0
        assert list(store) == [], "purging forgets the steps"


@over(ways=[PubSub], transports=("memory", "rabbitmq"))
async def test_of_several_handlers_only_those_that_failed_run_again(way: Way) -> None:
    ran: list[str] = []
    facts = Facts()
    subscriber = way.receiver(Broken(DontRetry("never")), hooks=facts)
    assert isinstance(subscriber, Subscriber)

    @subscriber.on("thing.#")
    async def fine(data: dict[str, int]) -> None:
        ran.append("fine")

    await way.started(subscriber)
    await way.send(1)
    await wait_for(lambda: facts.outcomes(1) == ["dead-letter"])
    (letter,) = [one async for one in subscriber.dead_letters.browse()]
    assert letter.receiver.endswith("thing")
    assert (await subscriber.dead_letters.redrive(Selection())).done == 1
    await wait_for(lambda: len(facts.outcomes(1)) == 2)
    assert ran == ["fine"]
    await subscriber.shutdown()


@over(ways=PLAIN, transports=("memory", "sqlite", "redis"))
async def test_a_deadline_that_has_passed_is_not_kept(way: Way) -> None:
    handle, facts = Broken(DontRetry("never")), Facts()
    async with way.receiving(handle, hooks=facts) as service:
        soon = service._clock.time() + 0.5
        await way.store(way.message(1, expires_at=soon))
        await wait_for(lambda: facts.outcomes(1) == ["dead-letter"])
        await wait_for(lambda: service._clock.time() > soon)
        handle.error = None
        await service.dead_letters.redrive(Selection())
        await wait_for(lambda: facts.outcomes(1) == ["dead-letter", "success"])


@over(ways=[one for one in WAYS if one is not Events], transports=("memory",))
async def test_everything_shows_its_transport_and_what_it_creates(way: Way) -> None:
    receiver = way.receiver(Broken(DontRetry("never")))
    with pytest.raises(MatadorError, match="not been started"):
        _ = receiver.transport  # each event loop has a memory of its own
    assert receiver.topology is not None
    assert way.queue in [receiver.topology.full_name(one.name) for one in receiver.topology.queues]
    await way.started(receiver)
    assert receiver.transport is await way.looking()
    await receiver.shutdown()


def test_what_only_sends_has_no_dead_letters() -> None:
    publisher = Publisher("memory://", exchange="events")
    assert [one.name for one in publisher.topology.exchanges] == ["events"]
    assert RpcClient("memory://", queue="maths").topology is None
    service = QueueService(Settings(QueueSettings(type="memory", url="memory://")))
    assert service.topology is None
    with pytest.raises(ConfigurationError, match="no queues, so there are no dead letters"):
        _ = service.dead_letters
    for one in (publisher, RpcClient("memory://", queue="maths")):
        assert not hasattr(one, "dead_letters")
