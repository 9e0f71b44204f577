"""What is not run: poisoned messages, duplicates, late and malformed ones; and what runs again
because its worker stopped.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ways.ways import (
    OPENED,
    PIPELINE,
    PLAIN,
    THOROUGH,
    Call,
    ChannelPublish,
    ChannelSend,
    Events,
    Facts,
    Jobs,
    Notify,
    Way,
    over,
)

from matador import DoRetry, Hooks, MemoryCheckpointStore, StandardRetryPolicy
from matador.codec import CompressedCodec, JsonCodec
from matador.errors import MaybePoisonedError, NonIdempotentCannotRetryError
from matador.model.envelope import ROOM_FOR_ERRORS
from matador.model.message import Message
from matador.policy.dedup import Deduplication, KeyedMessage
from matador.policy.validation import Validation
from matador.rpc import RemoteError, RpcClient
from matador.testing import wait_for

BAD, LAST_CHANCE, GOOD = 1, 2, 3

COUNTED = ("memory", "sqlite", "redis", "rabbitmq", "sqs")
"""Kafka counts no deliveries, and a consumer that dies takes its whole session with it: its own
tests have that."""


class Handler:
    """Notes which messages it has run, and in which attempts."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []

    async def __call__(self, n: int, ctx: Any) -> int:
        self.ran.append((n, ctx.attempt))
        return n

    @property
    def numbers(self) -> list[int]:
        return sorted(n for n, _ in self.ran)


# -- poisoned -------------------------------------------------------------------------------------


SOON = ("memory", "sqlite", "rabbitmq")
"""Where an abandoned message comes again soon."""


@over(outlives=True, transports=COUNTED)
async def test_the_fifth_delivery_is_refused_before_it_runs(way: Way) -> None:
    """Where an abandoned message comes again late, the third."""
    handler, facts = Handler(), Facts()
    limit, options = 5, dict[str, Any]()
    if way.place.transport not in SOON:
        limit, options = 3, {"retry": StandardRetryPolicy(max_deliveries=3)}
        way.lease = 3
    async with way.receiving(handler):
        pass
    OPENED.clear()
    for turn, (number, deliveries) in enumerate(((LAST_CHANCE, limit - 2), (BAD, limit - 1)), 1):
        await way.store(way.message(number))
        await way.abandon(number, deliveries)
        async with way.receiving(handler, hooks=facts, **options):
            await way.store(way.message(GOOD))
            await wait_for(lambda n=number, turn=turn: facts.of(n) and len(facts.of(GOOD)) == turn)
    (letter,) = await way.dead_letters()
    assert handler.numbers == [LAST_CHANCE, GOOD, GOOD]
    assert sorted(OPENED) == [LAST_CHANCE, GOOD, GOOD]
    (refused,), (last,) = facts.of(BAD), facts.of(LAST_CHANCE)
    assert (refused.outcome, refused.ran) == ("dead-letter", False)
    assert isinstance(refused.error, MaybePoisonedError)
    assert (last.outcome, last.receipt.delivery_count) == ("success", limit - 1)
    assert refused.receipt.delivery_count == limit
    assert (letter.number, "possibly poisoned" in letter.reason) == (BAD, True)


class Impatient(Hooks):
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def get_max_deliveries(self, envelope: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def redelivered(way: Way, **options: Any) -> Facts:
    """Run a message whose first worker died, and its neighbor."""
    handler, facts = Handler(), Facts()
    async with way.receiving(handler):
        pass
    await way.store(way.message(BAD))
    await way.abandon(BAD)
    OPENED.clear()
    hooks = [facts, *options.pop("hooks", ())]
    async with way.receiving(handler, hooks=hooks, **options):
        await way.store(way.message(GOOD))
        await wait_for(lambda: facts.of(BAD) and facts.of(GOOD))
    assert facts.outcomes(GOOD) == ["success"]
    assert handler.numbers == [one for one in (BAD, GOOD) if "success" in facts.outcomes(one)]
    assert sorted(OPENED) == handler.numbers, "its payload may be what kills workers"
    return facts


@over(outlives=True, transports=["memory"])
@pytest.mark.parametrize("answer", [2, 0, "two", object(), ValueError("broken")])
async def test_a_hook_decides_how_often_a_message_is_delivered(way: Way, answer: object) -> None:
    facts = await redelivered(way, hooks=[Impatient(answer)])
    assert facts.outcomes(BAD) == ["dead-letter" if answer == 2 else "success"]


@over(outlives=True, transports=SOON)
async def test_the_policy_decides_how_often_a_message_is_delivered(way: Way) -> None:
    facts = await redelivered(way, retry=StandardRetryPolicy(max_deliveries=2))
    assert isinstance(facts.of(BAD)[0].error, MaybePoisonedError)


@over(outlives=True, transports=SOON)
@pytest.mark.parametrize("idempotent", ["yes", "resumable", "no", "unknown"])
async def test_after_a_crash_a_message_runs_only_if_that_is_safe(way: Way, idempotent: Any) -> None:
    facts = await redelivered(way, idempotent=idempotent, checkpoints=MemoryCheckpointStore())
    (one,) = facts.of(BAD)
    safe = idempotent in ("yes", "resumable")
    assert (one.outcome, one.ran) == (("success", True) if safe else ("dead-letter", False))
    if not safe:
        assert isinstance(one.error, NonIdempotentCannotRetryError)


# -- interrupted ----------------------------------------------------------------------------------


class Hanging(Handler):
    """Hangs in its first run of the bad message."""

    async def __call__(self, n: int, ctx: Any) -> int:
        await super().__call__(n, ctx)
        if self.numbers.count(BAD) == 1 and n == BAD:
            await asyncio.Event().wait()
        return n


async def interrupted(way: Way, handler: Hanging, idempotent: Any) -> asyncio.Task[Any]:
    """Shut a receiver down at once while its handler runs; the sender may wait for a reply."""
    facts = Facts()
    receiver = way.receiver(handler, idempotent=idempotent, hooks=facts)
    await way.started(receiver)
    await way.send(GOOD)
    sending = asyncio.create_task(way.send(BAD))
    await wait_for(lambda: handler.numbers == [BAD, GOOD] and facts.of(GOOD))
    await receiver.shutdown(timeout=0)
    assert facts.of(BAD) == []
    return sending


@over(outlives=True, also=[Call])
async def test_a_shutdown_gives_a_message_back_uncounted(way: Way) -> None:
    handler, facts = Hanging(), Facts()
    sending = await interrupted(way, handler, "yes")
    async with way.receiving(handler, hooks=facts):
        await wait_for(lambda: facts.of(BAD))
        reply = await sending
        assert reply == BAD or not isinstance(way, Call)
        assert await way.dead_letters() == []
    (again,) = facts.of(BAD)
    assert (again.outcome, again.attempt) == ("success", 1)
    assert again.receipt.delivery_count == 1 or way.place.transport == "kafka"
    assert handler.ran.count((BAD, 1)) == 2


@over(outlives=True, transports=["sqlite", "rabbitmq"])
@pytest.mark.parametrize("idempotent", ["no", "unknown"])
async def test_an_interrupted_message_that_must_not_run_twice(way: Way, idempotent: Any) -> None:
    handler, facts = Hanging(), Facts()
    way.lease = 1
    await (await interrupted(way, handler, idempotent))
    async with way.receiving(handler, idempotent=idempotent, hooks=facts):
        await wait_for(lambda: facts.of(BAD))
        (letter,) = await way.dead_letters()
    assert facts.outcomes(BAD) == ["dead-letter"]
    assert (letter.number, "not idempotent" in letter.reason) == (BAD, True)
    assert handler.numbers == [BAD, GOOD]


# -- duplicates -----------------------------------------------------------------------------------


def deduplication(way: Way, **options: Any) -> Deduplication:
    """By id; jobs by their data, since the id of a job is taken while it is kept."""
    if isinstance(way, Jobs):
        return Deduplication(key=lambda message: message.data["n"], **options)
    return Deduplication(**options)


def twice(way: Way) -> str | None:
    return None if isinstance(way, Jobs) else "00000000-0000-4000-8000-000000000001"


class Failing(Handler):
    """Fails in its first run of the bad message."""

    async def __call__(self, n: int, ctx: Any) -> int:
        await super().__call__(n, ctx)
        if (n, ctx.attempt) == (BAD, 1):
            raise DoRetry("a failure is no result", delay=0.01)
        return n


@over(also=[Call], transports=PIPELINE)
async def test_a_duplicate_runs_once(way: Way) -> None:
    handler, facts, id_ = Failing(), Facts(), twice(way)
    options = {"deduplication": deduplication(way), "hooks": facts}
    async with way.receiving(handler, **options) as receiver:
        first = await way.send(BAD, id=id_)
        await wait_for(lambda: len(facts.of(BAD)) == 2)
        again = await way.send(BAD, id=id_)
        await way.send(GOOD)
        await wait_for(lambda: len(facts.of(BAD)) == 3 and facts.of(GOOD))
        assert receiver.metrics().duplicates == 1
    assert sorted(handler.ran) == [(BAD, 1), (BAD, 2), (GOOD, 1)]
    assert facts.outcomes(BAD) == ["retry", "success", "success"]
    if isinstance(way, Call):
        assert (first, again) == (BAD, BAD)


@over(also=[Call], transports=PIPELINE)
async def test_the_key_of_a_message_may_be_in_its_headers(way: Way) -> None:
    """The function sees the whole message, not only its data."""
    seen: list[KeyedMessage] = []

    def key(message: KeyedMessage) -> str:
        seen.append(message)
        return message.headers["request"]

    handler, facts = Handler(), Facts()
    options = {"deduplication": Deduplication(key=key), "hooks": facts}
    async with way.receiving(handler, **options) as receiver:
        await way.send(BAD, metadata={"request": "a"})
        await wait_for(lambda: facts.of(BAD))
        await way.send(4, metadata={"request": "a"})
        await way.send(GOOD, metadata={"request": "b"})
        await wait_for(lambda: facts.of(4) and facts.of(GOOD))
        assert receiver.metrics().duplicates == 1
    assert sorted(handler.numbers) == [BAD, GOOD]
    assert {one.name for one in seen} == {way.called}
    assert all(one.queue.startswith(way.queue) for one in seen)
    assert {one.id for one in seen} == {one.id for one in facts.attempts}
    numbers = [one.data.n if isinstance(way, Events) else one.data["n"] for one in seen]
    assert sorted(numbers) == [BAD, GOOD, 4]


@over(also=[Call], transports=PIPELINE)
async def test_duplicates_at_the_same_time_share_one_run(way: Way) -> None:
    facts, id_, both = Facts(), twice(way), asyncio.Event()
    ran: list[int] = []

    async def handle(n: int, ctx: Any) -> int:
        ran.append(n)
        await both.wait()
        return n

    options = {"deduplication": deduplication(way), "hooks": facts}
    async with way.receiving(handle, **options) as receiver:
        sending = [asyncio.create_task(way.send(BAD, id=id_))]
        await wait_for(lambda: ran)
        sending.append(asyncio.create_task(way.send(BAD, id=id_)))
        await wait_for(lambda: receiver.metrics().messages_received == 2)
        both.set()
        await wait_for(lambda: len(facts.of(BAD)) == 2)
        replies = await asyncio.gather(*sending)
        assert replies == [BAD, BAD] or not isinstance(way, Call)
        await way.send(GOOD)
        await wait_for(lambda: facts.of(GOOD))
        assert receiver.metrics().duplicates == 1
    assert ran == [BAD, GOOD]
    assert facts.outcomes(BAD) == ["success", "success"]


# -- late -----------------------------------------------------------------------------------------


@over(expires=True, transports=PIPELINE)
async def test_a_message_past_its_deadline_is_not_run(way: Way) -> None:
    handler, facts = Handler(), Facts()
    now = time.time()
    async with way.receiving(handler, hooks=facts) as receiver:
        await way.store(
            way.message(BAD, expires_at=now - 1), way.message(GOOD, expires_at=now + 60)
        )
        await wait_for(lambda: facts.of(BAD) and facts.of(GOOD))
        assert receiver.metrics().expired == 1
        assert receiver.metrics().messages_dead_lettered == 0
        assert await way.dead_letters() == []
    assert handler.numbers == [GOOD]
    (late,) = facts.of(BAD)
    assert (late.outcome, late.ran) == ("discard", False)


# -- malformed ------------------------------------------------------------------------------------

MALFORMED = (
    b"not json",
    b'{"n":',
    b'{"m":1}',
    b'{"n":"three"}',
    b'{"a":"\x00"}',
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b"[" * 100_000,
)
EMPTY = b""


async def misread(
    way: Way, malformed: str | None, bodies: tuple[bytes, ...], **options: Any
) -> Facts:
    handler, facts = Handler(), Facts()
    options |= {} if malformed is None else {"malformed": malformed}
    async with way.receiving(handler, hooks=facts, **options) as receiver:
        for body in bodies:
            await way.store(way.message(body=body))
        await way.send(GOOD)
        await wait_for(lambda: len(facts.attempts) == len(bodies) + 1)
        assert receiver.health().status == "healthy"
        assert receiver.metrics().messages_failed == len(bodies)
    assert handler.numbers == [GOOD]
    assert all(one.malformed and not one.ran for one in facts.of(None))
    return facts


async def kept_unchanged(way: Way, malformed: str | None, caplog: pytest.LogCaptureFixture) -> None:
    bodies = (*MALFORMED, EMPTY)
    facts = await misread(way, malformed, bodies)
    letters = await way.dead_letters()
    assert sorted(one.body for one in letters) == sorted(bodies)
    assert all("malformed" in one.reason for one in letters)
    assert set(facts.outcomes(None)) == {"dead-letter"}
    assert "kept unchanged among the dead letters" in caplog.text


@over(transports=PIPELINE)
async def test_a_byte_order_mark_is_left_out(way: Way) -> None:
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts):
        message = way.message(GOOD)
        await way.store(replace(message, body=b"\xef\xbb\xbf" + message.body))
        await wait_for(lambda: facts.attempts)
        assert await way.dead_letters() == []
    assert handler.numbers == [GOOD]


async def test_malformed_bytes_are_kept_unchanged(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    await kept_unchanged(way, None, caplog)


@over(chooses_malformed=True, transports=PIPELINE)
async def test_rejected_bytes_are_kept_unchanged(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    await kept_unchanged(way, "reject", caplog)


@over(chooses_malformed=True, transports=PIPELINE)
async def test_malformed_bytes_are_ignored_if_asked(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    facts = await misread(way, "ignore", MALFORMED)
    assert await way.dead_letters() == []
    assert set(facts.outcomes(None)) == {"discard"}
    assert {one.decision for one in facts.of(None)} == {None}
    assert "cannot be handled" not in caplog.text


@over(ways=PLAIN, transports=PIPELINE)
async def test_a_message_over_the_limit_is_malformed(way: Way) -> None:
    body = b'{"n":1,"x":"' + b"x" * 1000 + b'"}'
    await misread(way, None, (body,), validation=Validation(max_size=1000))
    (letter,) = await way.dead_letters()
    assert (letter.body, letter.reason) == (
        body,
        f"malformed: {len(body)} bytes, but at most 1000 are allowed",
    )


LIMIT = 2000


def padded(way: Way, size: int, kind: str) -> Message:
    """A message whose body has ``size`` bytes, or that many once it is decompressed."""
    message = way.message(GOOD)
    padding = size - len(message.body) - len(b',"x":""')
    data = b'{"n":%d,"x":"%s"}' % (GOOD, b"x" * padding)
    body = message.body.replace(b'{"n":%d}' % GOOD, data)
    assert len(body) == size
    if kind == "plain":
        return replace(message, body=body)
    headers = {**message.headers, "content-encoding": "gzip"}
    return replace(message, body=gzip.compress(body), headers=headers)


@over(ways=[Events, *PLAIN], transports=PIPELINE)
async def test_the_limit_is_handled_and_one_byte_more_is_malformed(way: Way) -> None:
    """Limits of jobs are those of their provider."""
    options: dict[str, Any] = {"validation": Validation(max_size=LIMIT)}
    if isinstance(way, Events):
        options = {"max_message_size": LIMIT}
    await only_the_first_fits(way, LIMIT, "plain", options)


@over(ways=[Events, ChannelSend, ChannelPublish], transports=PIPELINE)
async def test_the_limit_holds_for_the_decompressed_size(way: Way) -> None:
    """Calls and published messages are not compressed."""
    options: dict[str, Any] = {"validation": Validation(max_size=LIMIT)}
    limit = LIMIT
    if isinstance(way, Events):
        options = {"codec": CompressedCodec(JsonCodec(), max_size=LIMIT)}
        limit += ROOM_FOR_ERRORS  # what retries add must fit, too
    await only_the_first_fits(way, limit, "compressed", options)


async def only_the_first_fits(way: Way, limit: int, kind: str, options: dict[str, Any]) -> None:
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts, **options):
        fits, beyond = padded(way, limit, kind), padded(way, limit + 1, kind)
        await way.store(fits, beyond)
        await wait_for(lambda: len(facts.attempts) == 2)
    (letter,) = await way.dead_letters()
    assert handler.numbers == [GOOD]
    assert letter.body == beyond.body
    assert "malformed" in letter.reason


@over(ways=[Events, *PLAIN], transports=PIPELINE)
async def test_a_body_that_is_nested_too_deeply_is_malformed(way: Way) -> None:
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts):
        bodies: list[bytes] = []
        for depth in (100, 100_000):
            message, inner = way.message(GOOD), b"[" * depth + b"]" * depth
            data = b'{"n":%d,"x":%s}' % (GOOD, inner)
            bodies.append(message.body.replace(b'{"n":%d}' % GOOD, data))
            await way.store(replace(message, body=bodies[-1]))
        await wait_for(lambda: len(facts.attempts) == 2)
    (letter,) = await way.dead_letters()
    assert handler.numbers == [GOOD]
    assert letter.body == bodies[1]
    assert "malformed" in letter.reason


ODD_HEADERS: tuple[Mapping[str, str | int], ...] = (
    {"x-retry-count": -5},
    {"x-retry-count": "many"},
    {"x-retry-count": 2**63 - 1},
    {"x-retry-count": "9" * 5000},
    {"x-retry-count": 2, "x-first-failure": 2**62},
    {"x-first-failure": 2**63 - 1},
    {"x-first-failure": -(2**63)},
    {"x-first-failure": "yesterday", "x-matador-failed-handlers": ",,,"},
    {"x-matador-failed-handlers": 7, "x-matador-given-up-handlers": "x"},
    {"x-matador-last-error": "e" * 5000},
)


@over(ways=PLAIN, transports=THOROUGH)
async def test_odd_headers_do_no_harm(way: Way) -> None:
    """A message is tried three times at most, and is kept with its body."""
    facts, attempts = Facts(), list[int]()

    async def handle(n: int, ctx: Any) -> None:
        if n == BAD:
            attempts.append(ctx.attempt)
            _ = (ctx.first_failure, ctx.deadline)
            raise ValueError("no")

    options: dict[str, Any] = {"retry": StandardRetryPolicy(base_delay=0.001), "concurrency": 1}
    async with way.receiving(handle, hooks=facts, **options):
        odd = [way.message(BAD) for _ in ODD_HEADERS]
        for message, headers in zip(odd, ODD_HEADERS, strict=True):
            await way.store(replace(message, headers=headers))
        await wait_for(lambda: facts.outcomes(BAD).count("dead-letter") == len(odd))
        await way.send(GOOD)
        await wait_for(lambda: facts.of(GOOD))
        letters = [way.failed(await way.take_letter()) for _ in odd]
        assert await way.dead_letters() == []
    assert len(attempts) <= 3 * len(odd)
    assert {one.last_error for one in letters} == {"no"}
    assert max(one.attempts for one in letters) <= 3 or max(attempts) > 3


@over(ways=[Events], transports=PIPELINE)
async def test_an_event_of_the_wrong_type_is_kept(way: Way) -> None:
    """Its envelope can be read, so that it is a dead letter with all that is known of it."""
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts):
        message = way.message(GOOD)
        body = message.body.replace(b'"n":3', b'"n":"three"')
        assert body != message.body
        await way.store(type(message)(message.id, message.queue, body, message.headers))
        await way.send(GOOD)
        await wait_for(lambda: len(facts.attempts) == 2)
        (letter,) = await way.dead_letters()
    assert b'"n":"three"' in letter.body
    assert handler.numbers == [GOOD]


@over(ways=[Call], transports=PIPELINE)
async def test_what_a_caller_was_told_is_no_dead_letter(way: Way) -> None:
    """An unknown command, and data of the wrong type."""
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts) as server:
        await way.send(GOOD)
        client: RpcClient = way._sender
        with pytest.raises(RemoteError, match="No handler registered"):
            await client.call("OTHER", {"n": BAD}, timeout=30)
        with pytest.raises(RemoteError, match="ValidationError"):
            await client.call("THING", {"m": BAD}, timeout=30)
        await wait_for(lambda: len(facts.attempts) == 3)
        assert await way.dead_letters() == []
        assert server.metrics().messages_dead_lettered == 0
    assert handler.numbers == [GOOD]


@over(ways=[Notify], transports=PIPELINE)
async def test_an_unknown_command_that_nobody_waits_for_is_a_dead_letter(way: Way) -> None:
    handler, facts = Handler(), Facts()
    async with way.receiving(handler, hooks=facts):
        await way.send(GOOD)
        client: RpcClient = way._sender
        await client.notify("OTHER", {"n": BAD})
        await wait_for(lambda: facts.of(BAD))
        assert [one.number for one in await way.dead_letters()] == [BAD]
    assert handler.numbers == [GOOD]
