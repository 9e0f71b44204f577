"""What a broker can never store is settled in a simpler form, down to one that always fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.shop import QUEUE, Handler, Heard, OrderPlaced, dead, failing, make_app, settled

from matador import (
    DontRetry,
    DoRetry,
    EventAssertionError,
    StandardRetryPolicy,
    Topology,
)
from matador.errors import (
    MatadorError,
    MessageTooLargeError,
    SendRefusedError,
    TransportError,
    UnstorableError,
)
from matador.model.message import DeadLetter, Delivery, Message, Retry, Settlement
from matador.model.text import SHORT_TEXT
from matador.model.topology import DeadLetters, WorkQueue
from matador.policy.retry import Discard, RetryLater, SendToDeadLetters
from matador.runtime import settle
from matador.runtime.settle import AS_IT_ARRIVED
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.memory import MemoryTransport

ONE_SLOT = Topology("shop", queues=[WorkQueue("events", concurrency=1)])


class Choosy(MemoryTransport):
    """Can never store settlements that it does not like, and counts how often it was asked."""

    def __init__(
        self, refuses: Callable[[Settlement], bool], error: Exception | None = None
    ) -> None:
        super().__init__()
        self.refuses = refuses
        self.error = error or UnstorableError("I cannot")
        self.refused: list[Settlement] = []
        self.done: list[Settlement] = []

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        outcomes: list[MatadorError | None] = []
        for one in settlements:
            if not self.refuses(one):
                self.done.append(one)
                outcomes += await super().settle([one])
                continue
            self.refused.append(one)
            if not isinstance(self.error, MatadorError):
                raise self.error
            outcomes.append(self.error)
        return outcomes


def is_long(settlement: Settlement) -> bool:
    message = settlement.message if isinstance(settlement, Retry | DeadLetter) else None
    return message is not None and len(message.body) > 2000


def has_message(settlement: Settlement) -> bool:
    return isinstance(settlement, Retry) or (
        isinstance(settlement, DeadLetter) and settlement.message is not None
    )


def is_not_bare(settlement: Settlement) -> bool:
    return isinstance(settlement, Retry) or (
        isinstance(settlement, DeadLetter) and not settlement.bare
    )


async def handled_beside(transport: Choosy, handler: Handler, **options: Any) -> Heard:
    """Send a message that fails, and five neighbours, which must all be handled."""
    heard = Heard()
    options = {"topology": ONE_SLOT, "retry": StandardRetryPolicy(base_delay=0)} | options
    async with make_app(transport, handler, hooks=heard, **options) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(6))
        await settled(app)
        assert transport.messages(QUEUE) == []
        assert len(heard.of("success")) >= 5
    return heard


async def test_a_retry_with_texts_that_are_too_long_is_retried_with_short_ones() -> None:
    transport = Choosy(is_long)
    handler = failing(ValueError("x" * 3000))
    await handled_beside(transport, handler)
    assert handler.runs == 7, "it ran again, and succeeded"
    (retry,) = (one for one in transport.done if isinstance(one, Retry))
    assert b"x" * (SHORT_TEXT - 1) in retry.message.body
    assert len(transport.refused) == 1


async def test_a_retry_that_does_not_fit_at_all_becomes_a_dead_letter_as_it_arrived() -> None:
    transport = Choosy(has_message)
    heard = await handled_beside(transport, failing(ValueError("no")))
    (letter,) = dead_letters(transport)
    assert letter.reason == AS_IT_ARRIVED
    assert b"lastError" not in letter.body, "as it arrived"
    (error,) = heard.of("error")
    assert error.decision == SendToDeadLetters("undeliverable", AS_IT_ARRIVED), (
        "hooks hear the truth"
    )


async def test_a_dead_letter_that_fits_in_no_other_form_is_bare() -> None:
    transport = Choosy(is_not_bare)
    await handled_beside(transport, failing(DontRetry("no")))
    (letter,) = dead_letters(transport)
    assert (letter.reason, dict(letter.headers).keys()) == (
        AS_IT_ARRIVED,
        {"x-matador-dead-letter-reason"},
    )
    assert b'"order_id":"o-0"' in letter.body
    assert len(transport.refused) == 4, "each form was tried once"


async def test_with_dead_letters_switched_off_the_last_form_is_to_discard_it() -> None:
    transport = Choosy(has_message)
    topology = Topology(
        "shop",
        queues=[WorkQueue("events", concurrency=1)],
        dead_letters=DeadLetters(unhandled=False, undeliverable=False),
    )
    heard = await handled_beside(transport, failing(ValueError("no")), topology=topology)
    (error,) = heard.of("error")
    assert isinstance(error.decision, Discard)
    assert transport.completed(QUEUE) == 6


async def test_an_error_that_no_transport_should_raise_is_tried_again_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "_LONGEST_PAUSE", 0.05)
    transport = Choosy(has_message, UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"))
    await handled_beside(transport, failing(DontRetry("no")))
    (letter,) = dead_letters(transport)
    assert letter.reason == AS_IT_ARRIVED
    assert 2 * 2 <= len(transport.refused) <= 2 * 10


async def test_a_dead_letter_loses_nothing_to_a_fault_of_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However busy the worker is: what succeeds does not shorten the pauses of what fails."""
    pauses: list[float] = []
    later = settle.Settler._later

    def record(settler: settle.Settler, outcomes: Sequence[settle.Outcome], pause: float) -> None:
        pauses.append(pause)
        later(settler, outcomes, 0)

    monkeypatch.setattr(settle.Settler, "_later", record)
    transport = Choosy(is_not_bare, TransportError("nobody knows why"))
    await handled_beside(transport, failing(DontRetry("no")))
    (letter,) = dead_letters(transport)
    assert letter.reason == AS_IT_ARRIVED
    assert len(transport.refused) == 4 * 5, "each form was tried five times"
    assert pauses == sorted(pauses)
    assert sum(pauses) > 50


async def test_a_retry_that_a_full_queue_keeps_refusing_becomes_a_dead_letter() -> None:
    transport = Choosy(lambda one: isinstance(one, Retry), SendRefusedError("full", queue=QUEUE))
    await handled_beside(transport, failing(ValueError("no")))
    assert len(dead_letters(transport)) == 1
    assert 5 <= len(transport.refused) <= 10


async def test_a_dead_letter_waits_for_room_as_it_is() -> None:
    def refuses(one: Settlement) -> bool:
        return isinstance(one, DeadLetter) and len(transport.refused) < 6

    transport = Choosy(refuses, SendRefusedError("full", queue=f"{QUEUE}.undeliverable"))
    await handled_beside(transport, failing(DontRetry("no")))
    (letter,) = dead_letters(transport)
    assert letter.reason == "no", "in full"


async def test_one_that_is_tried_again_is_not_what_its_neighbours_wait_for() -> None:
    """Forty settlements that the transport cannot carry out, on a worker of one slot."""
    transport = Choosy(has_message, MessageTooLargeError(5, 3))
    handler = failing(*([ValueError("no")] * 40))
    async with make_app(transport, handler, topology=ONE_SLOT) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(45))
        await settled(app)
    assert handler.runs == 45
    assert len(dead_letters(transport)) == 40


def dead_letters(transport: MemoryTransport) -> list[Any]:
    return list(transport.messages(f"{QUEUE}.undeliverable"))


# -- texts ----------------------------------------------------------------------------------------


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("text", ["\udcff", "a\0b", "x" * 200_000, "é" * 200_000])
@pytest.mark.parametrize("kind", [DontRetry, DoRetry, ValueError, EventAssertionError])
async def test_every_reason_can_be_stored_and_is_short(kind: type[Exception], text: str) -> None:
    handler = failing(*([kind(text)] * 3))
    async with make_app(
        None, handler, retry=StandardRetryPolicy(base_delay=0), topology=ONE_SLOT
    ) as app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(6))
        await settled(app)
        assert handler.runs >= 6
        for letter in dead(app):
            reason = str(letter.reason)
            assert reason.encode()
            assert len(reason) <= 4000
            assert "\0" not in reason
            assert len(letter.body) < 60_000


async def test_an_error_without_words_is_kept_by_its_name() -> None:
    async with make_app(None, failing(Mute()), retry=StandardRetryPolicy(max_attempts=1)) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        (letter,) = dead(app)
    assert b'"lastError":"Mute"' in letter.body


async def test_a_payload_near_the_limit_that_fails_is_retried() -> None:
    handler = failing(ValueError("x" * 3000), ValueError("y" * 3000))
    retry = StandardRetryPolicy(base_delay=0)
    async with make_app(None, handler, retry=retry, max_message_size=2000) as app:
        await app.send(OrderPlaced("o" * 1600))
        await settled(app)
        assert dead(app) == []
    assert handler.runs == 3


# -- what a transport could not read --------------------------------------------------------------


class HalfBlind(MemoryTransport):
    """Cannot read a part of every message that is marked."""

    async def subscribe(self, queue: str, *, prefetch: int) -> Subscription:
        subscription = await super().subscribe(queue, prefetch=prefetch)
        receive = subscription.receive

        async def blinded(limit: int) -> Sequence[Delivery]:
            return [
                Delivery(one.body, one.headers, one.receipt, "header 'x': out of range")
                if b"odd" in one.body
                else one
                for one in await receive(limit)
            ]

        subscription.receive = blinded
        return subscription


async def test_a_delivery_with_a_problem_is_malformed_and_kept_raw() -> None:
    transport, handler, heard = HalfBlind(), Handler(), Heard()
    async with make_app(transport, handler, hooks=heard) as app:
        await app.send_many([OrderPlaced("odd"), OrderPlaced("good")])
        await settled(app)
        (letter,) = dead(app)
    assert [one.order_id for one in handler.data] == ["good"]
    assert letter.reason == "malformed: header 'x': out of range"
    assert str(heard.of("decode_error")[0].error) == "header 'x': out of range"


async def test_a_key_of_200_kilobytes_twice_makes_a_short_reason() -> None:
    key = "k" * 200_000
    async with make_app(None, Handler()) as app:
        body = f'{{"{key}":1,"{key}":2,"id":"1","data":{{"order_id":"1"}},"docket":{{"eventKey":'
        body += '"order.placed","targetSubscriber":"handle","attempts":1,"importance":'
        body += '"can-ignore","createdAt":"2026-11-15T19:02:37.435Z"}}'
        await app.transport.send([Message("1", QUEUE, body.encode())])
        await settled(app)
        (letter,) = dead(app)
    assert len(str(letter.reason)) < 400
    assert "duplicate key" in str(letter.reason)


async def test_a_retry_is_what_hooks_hear_when_short_texts_fit() -> None:
    heard = await handled_beside(Choosy(is_long), failing(ValueError("x" * 3000)))
    (error,) = heard.of("error")
    assert isinstance(error.decision, RetryLater)


async def test_a_settlement_that_is_refused_in_every_form_keeps_its_message() -> None:
    transport = Choosy(lambda one: isinstance(one, Retry | DeadLetter))
    app = make_app(transport, failing(DontRetry("no")), topology=ONE_SLOT, shutdown=0.1)
    async with app:
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(3))
        await wait_for(lambda: transport.completed(QUEUE) == 2)
        await wait_for(lambda: len(transport.refused) >= 6)  # the last form is tried again
        assert transport.completed(QUEUE) == 2, "nothing unsettled is acknowledged"
