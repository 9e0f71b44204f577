"""A send that did not store everything says so: what failed, what is unknown, what is stored."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    Handler,
    Heard,
    OrderPaid,
    OrderPlaced,
    dead,
    make_app,
    memory,
    settled,
    subscribed,
)

from matador import Context, Envelope, Matador, Schema, SendOptions, Topology
from matador.errors import (
    AllTransportsFailedError,
    ConfigurationError,
    MatadorError,
    NotConnectedError,
    SendFailedError,
    SendRefusedError,
    SendTimeoutError,
    SendUnconfirmedError,
    may_be_stored,
)
from matador.model.message import Message, Once
from matador.model.sending import SendResult, SentTo, raise_for_errors
from matador.testing import running
from matador.transports import MultiTransport
from matador.transports.memory import MemoryTransport

QUEUES = Topology("shop", queues=["events", "billing", "shipping"])


class Choosy(MemoryTransport):
    """Answers with an error for messages whose body has a word; also to ``send_once``."""

    def __init__(self, **errors: MatadorError) -> None:
        super().__init__()
        self.errors = {word.encode(): error for word, error in errors.items()}
        self.batches: list[int] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self.batches.append(len(messages))
        refused = [self._refused(message) for message in messages]
        good = [one for one, error in zip(messages, refused, strict=True) if error is None]
        outcomes = iter(await super().send(good))
        return [next(outcomes) if error is None else error for error in refused]

    async def send_once(
        self, messages: Sequence[Message], once: Once
    ) -> Sequence[MatadorError | None]:
        return await self.send(messages)

    def _refused(self, message: Message) -> MatadorError | None:
        found = (error for word, error in self.errors.items() if word in message.body)
        return next(found, None)


def shop(transport: MemoryTransport, **options: Any) -> Matador:
    """Three subscribers, each with a queue of its own; it only sends."""
    made = [
        subscribed(Handler(), "email"),
        subscribed(Handler(), "bill", queue="billing"),
        subscribed(Handler(), "ship", queue="shipping"),
    ]
    everything: dict[str, Any] = {"topology": QUEUES, "consume_from": ()} | options
    return make_app(transport, *made, **everything)


def full(*queues: str) -> FaultyTransport:
    transport = FaultyTransport()
    transport.refuse_queues = {f"shop.{queue}" for queue in queues}
    return transport


# -- one event ---------------------------------------------------------------------------------


async def test_nothing_stored_is_an_error_that_says_what_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with shop(full("events", "billing", "shipping")) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
        assert app.state.is_idle
    error = caught.value
    logged = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert logged == [str(one) for one in error.result.errors]
    assert str(error) == (
        "order.placed: 3 of 3 messages could not be stored: "
        "order.placed was not sent to email (shop.events): shop.events is full; "
        "order.placed was not sent to bill (shop.billing): shop.billing is full; "
        "order.placed was not sent to ship (shop.shipping): shop.shipping is full"
    )
    assert (error.subscriber, error.queue, error.unknown) == ("email", "shop.events", False)
    assert error.results == (error.result,)
    result: SendResult = error.result
    assert (result.event_key, result.sent, result.skipped) == ("order.placed", 0, 0)
    assert error.__cause__ is result.errors[0].__cause__ is not None


async def test_what_was_stored_is_said_too() -> None:
    async with shop(full("billing")) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"), correlation_id="c")
        assert len(memory(app).messages(QUEUE)) == 1
    result = caught.value.result
    assert "1 of 3 messages could not be stored, 2 were stored: " in str(caught.value)
    assert [one.subscriber for one in result.messages] == ["email", "ship"]
    assert (caught.value.subscriber, caught.value.queue) == ("bill", "shop.billing")


async def test_what_is_unknown_is_called_unknown() -> None:
    lost = SendUnconfirmedError("the connection is lost")
    transport = Choosy(bill=lost, email=SendRefusedError("no room"))
    async with shop(transport) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    assert (
        "order.placed: 1 of 3 messages could not be stored, "
        "1 of 3 messages may or may not be stored (the outcome is unknown), 1 was stored: "
    ) in str(caught.value)
    refused, unknown = caught.value.result.errors
    assert (refused.unknown, unknown.unknown, caught.value.unknown) == (False, True, True)
    assert "may or may not have been sent to bill" in str(unknown)
    assert unknown.__cause__ is lost


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (SendUnconfirmedError("lost"), True),
        (SendTimeoutError("late"), True),
        (SendRefusedError("no"), False),
        (NotConnectedError("no"), False),
        (AllTransportsFailedError([("a", SendRefusedError("no"))]), False),
        (
            AllTransportsFailedError([("a", SendTimeoutError("late")), ("b", NotConnectedError())]),
            True,
        ),
        (SendFailedError("x", cause=SendTimeoutError("late")), True),
        (OSError("odd"), False),
        (None, False),
    ],
    ids=repr,
)
def test_which_errors_leave_the_outcome_open(error: BaseException | None, unknown: bool) -> None:
    assert may_be_stored(error) is unknown
    assert SendFailedError("not sent", cause=error).unknown is unknown


async def test_a_group_that_may_have_stored_it_says_so() -> None:
    first, second = FaultyTransport(name="first"), FaultyTransport(name="second")
    first.send_errors.append(SendTimeoutError("no answer"))
    second.refuse_queues = {QUEUE}
    async with make_app(MultiTransport([first, second]), Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError, match="the outcome is unknown") as caught:
            await app.send(OrderPlaced("o-1"))
    assert caught.value.unknown


async def test_of_what_a_transport_must_not_raise_the_outcome_is_unknown() -> None:
    transport = FaultyTransport()
    async with make_app(transport, Handler(), consume_from=()) as app:
        for send in (
            lambda: app.send(OrderPlaced("o-1")),
            lambda: app.send_many([OrderPlaced("o-2")]),
        ):
            transport.send_errors.append(OSError("cable cut"))
            with pytest.raises(SendFailedError, match=r"unknown.*OSError: cable cut") as caught:
                await send()
            assert isinstance(caught.value.__cause__, SendUnconfirmedError)
            assert isinstance(caught.value.__cause__.__cause__, OSError)
        assert (await app.send(OrderPlaced("o-3"))).ok


class Forgetful(MemoryTransport):
    """Stores everything, and reports one outcome too few."""

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        return (await super().send(messages))[1:]


async def test_a_transport_that_forgets_an_outcome_holds_nobody_up() -> None:
    async with make_app(Forgetful(), Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError, match=r"unknown.*0 outcomes for 1 messages"):
            await app.send(OrderPlaced("o-1"))
        with pytest.raises(SendFailedError, match=r"unknown.*1 outcomes for 2 messages"):
            await app.send_many([OrderPlaced("o-2"), OrderPlaced("o-3")])


# -- reported instead --------------------------------------------------------------------------


async def test_errors_can_be_reported_instead() -> None:
    heard = Heard()
    app = shop(full("billing"), send_errors="report", hooks=heard)
    async with app:
        result = await app.send(OrderPlaced("o-1"))
        (many,) = await app.send_many([OrderPlaced("o-2")])
    for one in (result, many):
        assert (one.sent, one.ok, [error.subscriber for error in one.errors]) == (
            2,
            False,
            ["bill"],
        )
        assert one.errors[0].result is None
        assert one.errors[0].results == ()
        with pytest.raises(SendFailedError, match=r"1 of 3 messages") as caught:
            one.raise_for_errors()
        assert caught.value.result is one
    assert len(heard.of("enqueue_error")) == 2


async def test_a_good_result_is_returned_by_both() -> None:
    for choice in ("raise", "report"):
        async with shop(MemoryTransport(), send_errors=choice) as app:
            result = await app.send(OrderPlaced("o-1"))
        assert result.raise_for_errors() is result
        assert (result.sent, result.errors) == (3, ())


def test_another_choice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="send_errors must be 'raise' or 'report'"):
        shop(MemoryTransport(), send_errors="ignore")


async def test_a_producer_does_as_its_application() -> None:
    for choice in ("raise", "report"):
        producer = shop(full("billing"), send_errors=choice).producer()
        async with producer:
            if choice == "report":
                assert not (await producer.send(OrderPlaced("o-1"))).ok
            else:
                with pytest.raises(SendFailedError):
                    await producer.send(OrderPlaced("o-1"))


async def test_a_tool_can_change_it() -> None:
    app = shop(full("billing"))
    app.configure(send_errors="report")
    async with app:
        assert not (await app.send(OrderPlaced("o-1"))).ok


def test_code_without_a_loop_is_told_too() -> None:
    with shop(full("billing")).sync() as sync:
        with pytest.raises(SendFailedError, match="1 of 3 messages") as caught:
            sync.send(OrderPlaced("o-1"))
        assert caught.value.result.sent == 2
        with pytest.raises(SendFailedError, match="2 of 2 events"):
            sync.send_many([OrderPlaced("o-1"), OrderPlaced("o-2")])


async def test_a_callback_whose_event_is_not_stored_fails_and_is_tried_again() -> None:
    async def pay(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        await ctx.send(OrderPaid(envelope.data.order_id))

    handler = Handler(pay)
    transport = full("billing")
    paid = subscribed(Handler(), "bill", queue="billing")
    schema = Schema({OrderPlaced: [subscribed(handler)], OrderPaid: [paid]})
    async with make_app(transport, schema=schema, topology=QUEUES) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert (handler.runs, len(dead(app))) == (1, 0)
        assert (await memory(app).depth(QUEUE)).delayed == 1
        assert memory(app).messages("shop.billing") == []


async def test_a_test_is_told_whatever_the_application_does() -> None:
    for choice in ("raise", "report"):
        app = make_app(None, Handler(), max_message_size=10, send_errors=choice)
        async with running(app) as harness:
            with pytest.raises(SendFailedError):
                await harness.send(OrderPlaced("o-1"))


# -- many --------------------------------------------------------------------------------------


async def test_many_raise_once_with_all_results() -> None:
    transport = Choosy(wrong=SendRefusedError("no room"), odd=SendTimeoutError("late"))
    events = [
        OrderPlaced(f"{'wrong' if n == 700 else 'odd' if n == 3 else 'o'}-{n}") for n in range(1200)
    ]
    async with make_app(transport, Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send_many(events)
        assert app.state.is_idle
        assert len(memory(app).messages(QUEUE)) == 1198
    error = caught.value
    assert str(error) == (
        "2 of 1200 events: 1 of 1200 messages could not be stored, 1 of 1200 messages may or may "
        "not be stored (the outcome is unknown), 1198 were stored: "
        "order.placed may or may not have been sent to handle (shop.events): late; "
        "order.placed was not sent to handle (shop.events): no room"
    )
    assert transport.batches == [500, 500, 200], "a failure does not end the others"
    assert [result.ok for result in error.results].count(False) == 2
    assert error.result is error.results[3]
    assert [n for n, result in enumerate(error.results) if not result.ok] == [3, 700]
    assert error.unknown


async def test_one_of_many_is_named_by_its_event() -> None:
    async with make_app(Choosy(wrong=SendRefusedError("no")), Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError, match=r"^order\.placed: 1 of 1 message could not"):
            await app.send_many([OrderPlaced("wrong")])


async def test_only_the_first_reasons_are_given_and_long_ones_are_cut() -> None:
    transport = Choosy(wrong=SendRefusedError("\udcff" + "x" * 5000))
    async with make_app(transport, Handler(), consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send_many([OrderPlaced("wrong") for _ in range(10)])
    text = str(caught.value)
    assert text.endswith("…; and 7 more")
    assert text.count("was not sent to") == 3
    assert len(text) < 1200
    text.encode()  # it can be logged


async def test_pipelines_choose_for_a_call() -> None:
    events = [
        ("order.placed", {"order_id": word}, SendOptions(id=word)) for word in ("wrong", "good")
    ]
    for choice in ("raise", "report"):
        transport = Choosy(wrong=SendRefusedError("no room"))
        app = make_app(transport, Handler(), consume_from=(), send_errors=choice)
        named = [(app.schema.event(key), data, options) for key, data, options in events]
        async with app:
            results = await app.publish(named, once=Once("import"), send_errors="report")
            assert [result.ok for result in results] == [False, True]
            with pytest.raises(SendFailedError) as caught:
                await app.publish(named, once=Once("import"), send_errors="raise")
            assert [result.ok for result in caught.value.results] == [False, True]
            if choice == "raise":
                with pytest.raises(SendFailedError, match="1 of 2 events"):
                    await app.publish(named)
            else:
                assert len(await app.publish(named)) == 2


# -- the error itself --------------------------------------------------------------------------


def test_results_without_errors_raise_nothing() -> None:
    raise_for_errors([])
    raise_for_errors([SendResult("order.placed", 1, 0, (), (SentTo("a", "q", "1", "memory"),))])


@pytest.mark.parametrize("copy", [pickle.dumps, None], ids=["pickled", "as-it-is"])
def test_the_error_can_be_pickled(copy: Callable[[object], bytes] | None) -> None:
    failed = SendFailedError("no", queue="q", subscriber="s", cause=SendTimeoutError("late"))
    result = SendResult("order.placed", 1, 0, (failed,), (SentTo("a", "q", "1", "memory"),))
    with pytest.raises(SendFailedError) as caught:
        result.raise_for_errors()
    error = caught.value if copy is None else pickle.loads(copy(caught.value))
    assert (error.queue, error.subscriber, error.unknown) == ("q", "s", True)
    assert (error.result.sent, error.result.errors[0].unknown) == (1, True)
    assert str(error) == str(caught.value)
