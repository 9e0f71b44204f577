"""Messages without an envelope: what is read of them, what their retries say, what is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from matador import WorkQueue
from matador.errors import ConfigurationError, DontRetry, InvalidMessageError, LifecycleError
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    TRACEBACK_HEADER,
    Delivery,
    Properties,
    Receipt,
)
from matador.model.text import BOM, SHORT_TEXT
from matador.policy.dedup import Deduplication
from matador.policy.retry import (
    Discard,
    RetryLater,
    SendToDeadLetters,
    StandardRetryPolicy,
)
from matador.policy.validation import Validation
from matador.runtime.acknowledgement import Acknowledgement
from matador.runtime.dead_letters import CHANGED, Edit
from matador.runtime.dedup import Deduplicator
from matador.runtime.functions import read_function
from matador.runtime.message_service import (
    _as_headers,
    check_ids,
    metadata_headers,
    work_queue,
)
from matador.runtime.messages import (
    ENCODING,
    ERROR,
    FAILED_AT,
    FAILED_HANDLERS,
    FIRST_FAILURE,
    FIRST_QUEUE,
    GIVEN_UP_HANDLERS,
    ORIGINAL_QUEUE,
    RETRY_COUNT,
    MessageContext,
    MessageOptions,
    MessageReader,
    MessageRoute,
    MessageWay,
    MessageWork,
    Unhandled,
    Unreadable,
    decoded,
    routing_key_of,
)
from matador.runtime.way import Failure, Refusal, Route, Scope
from matador.testing import ManualClock

QUEUE = "shop.q"


def takes_number(data: int) -> None: ...


def takes_anything(data: Any, ctx: MessageContext) -> tuple[Any, MessageContext]:
    return data, ctx


def takes_nothing() -> str:
    return "called"


def route(function: Any, **options: Any) -> MessageRoute:
    read = read_function(function, "here", context=MessageContext)
    given: dict[str, Any] = {
        "takes_context": read.takes_context,
        "is_async": read.is_async,
    } | options
    return MessageRoute(handler=read.name, function=read, **given)


class Plain(MessageWay):
    """Handles messages by their routing keys."""

    def __init__(self, keeps: bool = True, **validation: Any) -> None:
        self.clock = ManualClock()
        self.retry = StandardRetryPolicy()
        super().__init__(
            MessageOptions(
                way="message",
                policy=self.retry,
                validation=Validation(**validation),
                clock=self.clock,
                keeps=lambda queue: keeps and queue == QUEUE,
                transport="memory",
            )
        )
        self.routes = {
            "number": route(takes_number),
            "any": route(takes_anything, retry=StandardRetryPolicy(max_attempts=9)),
            "nothing": route(takes_nothing),
        }

    def route_of(self, delivery: Delivery, name: str) -> Route:
        try:
            return self.routes[name]
        except KeyError:
            raise Unhandled(f"nobody for {name}") from None

    def arguments(self, work: MessageWork, scope: Scope | None) -> Any:
        return MessageContext(work, scope, "events")


def delivery(
    body: bytes = b"1", key: str | None = "number", id: str = "m-1", **options: Any
) -> Delivery:
    headers, problem = options.pop("headers", {}), options.pop("problem", None)
    given = Properties(routing_key=key, **options.pop("properties", {}))
    receipt = Receipt(QUEUE, 1, **options)
    return Delivery(body, headers, receipt, problem, given, id)


def work_of(way: Plain, one: Delivery) -> MessageWork:
    found = way.read(one)
    assert isinstance(found, MessageWork)
    return found


def refusal_of(way: Plain, one: Delivery) -> Refusal:
    found = way.read(one)
    if isinstance(found, MessageWork):
        assert way.open is not None
        refused = way.open(found)
        assert refused is not None
        return refused
    assert isinstance(found, Refusal)
    return found


# -- reading -------------------------------------------------------------------------------------


def test_a_message_is_read_with_what_its_headers_say() -> None:
    way = Plain()
    headers = {RETRY_COUNT: "2", FIRST_FAILURE: 1500, "tenant": "t"}
    one = delivery(BOM + b"7", headers=headers, properties={"expires_at": 9.0})
    work = work_of(way, one)
    assert (work.id, work.attempt, work.deadline, work.name) == ("m-1", 3, 9.0, "number")
    assert (work.first_failure, work.body, work.headers) == (1.5, b"7", headers)
    assert work.route is way.routes["number"]
    assert way.open is not None
    assert way.open(work) is None
    assert work.data == 7
    bare = work_of(way, Delivery(b"1", {}, Receipt("number", 1)))
    assert (bare.attempt, bare.deadline, bare.first_failure) == (1, None, None)
    assert bare.name == "number", "that of its queue"
    assert bare.id, "a new one"
    assert routing_key_of(Delivery(b"1", {}, Receipt("q", 1))) == ""


@pytest.mark.parametrize(
    ("value", "attempt"),
    [(0, 1), ("5", 6), (-1, 1), ("x", 1), (1 << 53, (1 << 53) + 1), ((1 << 53) + 1, 1), ("", 1)],
)
def test_a_count_that_another_program_wrote_may_be_none(value: Any, attempt: int) -> None:
    assert work_of(Plain(), delivery(headers={RETRY_COUNT: value})).attempt == attempt


@pytest.mark.parametrize(
    ("body", "options", "kind", "said"),
    [
        (b"1", {"key": "other"}, "unhandled", "nobody for other"),
        (b"{", {"key": "other"}, "malformed", "not valid JSON"),
        (b"", {"key": "other"}, "malformed", "the body is empty"),
        (b"1", {"problem": "a header"}, "malformed", "a header"),
        (b'"a"', {}, "malformed", "takes_number: Expected `int`"),
        (b"{", {}, "malformed", "not valid JSON"),
        (b'{"a":1}', {}, "malformed", "takes_number: Expected `int`"),
        (b"", {}, "malformed", "the body is empty"),
        (b"", {"key": "nothing"}, "malformed", "the body is empty"),
        (b"null", {"key": "nothing"}, "malformed", "the body is null"),
        (b"{", {"key": "any"}, "malformed", "not valid JSON"),
        (b"1" * 20, {}, "malformed", "20 bytes, but at most 15 are allowed"),
        (b'{"a":"123456789"}', {"key": "any"}, "malformed", "17 bytes, but at most 15"),
        (b'{"a":"\0"}', {"key": "any"}, "malformed", ""),
    ],
)
def test_a_message_that_cannot_be_handled_is_refused_with_the_reason(
    body: bytes, options: dict[str, Any], kind: str, said: str
) -> None:
    one = delivery(body, **options)
    refused = refusal_of(Plain(max_size=15), one)
    assert (refused.kind, refused.delivery) == (kind, one)
    assert said in str(refused.error)
    assert isinstance(refused.error, Unhandled if kind == "unhandled" else Unreadable)
    assert refused.work is not None


async def test_a_handler_is_called_with_what_it_takes() -> None:
    way = Plain()
    for body, expected in ((b'{"a":1}', {"a": 1}), (b"[1]", [1])):
        work = work_of(way, delivery(body, "any"))
        assert way.open is not None
        assert way.open(work) is None
        call = way.call(work, None)
        assert callable(call)
        data, context = call()
        assert (data, context.id, context.exchange) == (expected, "m-1", "events")
    work = work_of(way, delivery(b"1", "nothing"))
    assert way.open is not None
    assert way.open(work) is None
    call = way.call(work, None)
    assert callable(call)
    assert call() == "called"


def test_which_policy_decides_and_where_letters_are_kept() -> None:
    way = Plain()
    assert way.policy(work_of(way, delivery())) is way.retry
    assert way.policy(work_of(way, delivery(key="any"))) is way.routes["any"].retry
    assert way.dead_letters(QUEUE, "undeliverable") == "dlq"
    assert way.dead_letters("other", "undeliverable") is None
    assert Plain(keeps=False).dead_letters(QUEUE, "unhandled") is None
    assert Plain(malformed="ignore").malformed == "ignore"


def test_the_fact_of_a_message_says_what_is_known_of_it() -> None:
    way = Plain()
    one = delivery(BOM + b"7", properties={"correlation_id": "c"}, headers={"a": 1})
    fact = way.fact(work_of(way, one))
    assert (fact.way, fact.id, fact.name, fact.receiver) == ("message", "m-1", "number", QUEUE)
    assert (fact.transport, fact.attempt, fact.correlation_id) == ("memory", 1, "c")
    assert (fact.created_at, fact.due_at) == (way.clock.time(), None)
    assert (fact.metadata, fact.data, fact.known) == ({"a": 1}, b"7", True)
    assert fact.handler == way.routes["number"].handler
    unread = way.unread(one)
    assert (unread.known, unread.handler, unread.data) == (False, "", BOM + b"7")
    bare = way.fact(work_of(way, Delivery(b"1", {}, Receipt("number", 1))))
    assert bare.correlation_id is None


def test_a_message_is_named_with_its_handler_in_logs() -> None:
    way = Plain()
    work = work_of(way, delivery())
    assert way.label(work) == f"{work.route.handler}: message m-1 of {QUEUE}"
    refused = refusal_of(way, delivery(key="other"))
    assert way.label(refused.work) == f"message m-1 of {QUEUE}"


def test_steps_and_duplicates_are_those_of_a_queue() -> None:
    way = Plain()
    work = work_of(way, delivery())
    assert way.checkpoint_id(work) == f"{QUEUE}:m-1"
    moved = work_of(way, delivery(headers={FIRST_QUEUE: "shop.gone"}))
    assert way.checkpoint_id(moved) == "shop.gone:m-1"
    by_id = Deduplicator(Deduplication())
    assert way.duplicate_key(work, by_id) == f"{QUEUE}:m-1"
    nameless = [work_of(way, delivery(body, id="")) for body in (b"1", b"1", b"2")]
    keys = [way.duplicate_key(one, by_id) for one in nameless]
    assert keys[0] == keys[1] != keys[2]
    own = Deduplicator(Deduplication(key=lambda message: f"{message.name}-{message.data}"))
    assert way.duplicate_key(work, own) == f"{QUEUE}:number-1"


# -- retries and dead letters --------------------------------------------------------------------


def failed(decision: Any, *, ran: bool = True, bare: bool = False, longest: int = 9999) -> Failure:
    try:
        raise ValueError("x" * 2000)
    except ValueError as error:
        return Failure(error, decision, ran, longest, bare)


@pytest.mark.parametrize("ran", [True, False])
def test_a_retry_counts_and_says_when_it_failed_first(ran: bool) -> None:
    way = Plain()
    now = round(way.clock.time() * 1000)
    one = delivery(headers={"a": 1}, priority=4, ordering_key="k")
    message = way.successor(work_of(way, one), failed(RetryLater(2.5), ran=ran))
    assert (message.id, message.queue, message.body) == ("m-1", QUEUE, b"1")
    assert (message.delay, message.priority, message.ordering_key) == (2.5, 4, "k")
    assert message.properties is one.properties
    text = message.headers[ERROR]
    assert len(str(text)) == SHORT_TEXT
    counted = {RETRY_COUNT: 1} if ran else {}
    assert message.headers == {"a": 1, FIRST_FAILURE: now, ERROR: text, **counted}
    again = delivery(headers={FIRST_FAILURE: 1500, RETRY_COUNT: 4})
    message = way.successor(work_of(way, again), failed(RetryLater(0.0), longest=10))
    assert message.headers[FIRST_FAILURE] == 1500
    assert message.headers[RETRY_COUNT] == 5
    assert len(str(message.headers[ERROR])) == 10


@pytest.mark.parametrize(
    ("ran", "bare", "traced"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_dead_letter_says_where_it_was_and_when_it_failed(
    ran: bool, bare: bool, traced: bool
) -> None:
    way = Plain()
    decision = SendToDeadLetters("dlq", "no")
    message = way.successor(work_of(way, delivery()), failed(decision, ran=ran, bare=bare))
    now = round(way.clock.time() * 1000)
    assert (message.headers[ORIGINAL_QUEUE], message.headers[FAILED_AT]) == (QUEUE, now)
    assert message.headers[ERROR_TYPE_HEADER] == "ValueError"
    assert (TRACEBACK_HEADER in message.headers) == traced
    assert message.delay == 0.0
    retried = way.successor(work_of(way, delivery()), failed(Discard("late")))
    assert ORIGINAL_QUEUE not in retried.headers


# -- stored messages -----------------------------------------------------------------------------


def reader(**options: Any) -> MessageReader:
    way = Plain()

    def routes_of(delivery: Delivery, queue: str) -> Sequence[MessageRoute]:
        found = way.routes.get(routing_key_of(delivery))
        return () if found is None else (found,)

    return MessageReader(Validation(), name_of=routing_key_of, routes_of=routes_of, **options)


def test_a_stored_message_says_what_came_of_it() -> None:
    headers: dict[str, str | int] = {
        RETRY_COUNT: 3,
        ERROR: "no",
        ORIGINAL_QUEUE: "shop.first",
        "tenant": "t",
    }
    contents = reader().read(
        delivery(BOM + b"7", headers=headers, properties={"correlation_id": "c"}), QUEUE
    )
    assert (contents.id, contents.name, contents.attempts) == ("m-1", "number", 3)
    assert contents.receiver.endswith("takes_number")
    assert (contents.last_error, contents.original_queue) == ("no", "shop.first")
    assert (contents.correlation_id, contents.metadata) == ("c", {"tenant": "t"})
    assert (contents.plain(), contents.problem) == (7, None)
    bare = reader().read(Delivery(b"{", {}, Receipt("q", 1)), QUEUE)
    assert (bare.attempts, bare.last_error, bare.original_queue) == (0, None, None)
    assert (bare.correlation_id, bare.receiver, bare.plain()) == (None, "", None)
    assert bare.problem is not None

    def unpacked(one: Delivery) -> tuple[bytes, str | None]:
        return one.body[::-1], "broken" if one.id else None

    packed = reader(body_of=unpacked)
    assert packed.read(delivery(b"21"), QUEUE).problem == "broken"
    assert packed.read(delivery(b"21", id=""), QUEUE).plain() == 12


def test_a_renewed_message_has_forgotten_its_failures() -> None:
    gone = {
        RETRY_COUNT: 3,
        FIRST_FAILURE: 1,
        ORIGINAL_QUEUE: "q",
        FAILED_AT: 2,
        ERROR: "no",
        GIVEN_UP_HANDLERS: "a",
        REASON_HEADER: "r",
        ERROR_TYPE_HEADER: "E",
        TRACEBACK_HEADER: "t",
    }
    kept = {FAILED_HANDLERS: "a,b", ENCODING: "gzip", "tenant": "t"}
    one = delivery(b"{odd", headers=gone | kept, properties={"expires_at": 9.0})
    fresh = reader().renewed(one, QUEUE)
    assert (fresh.body, fresh.headers) == (b"{odd", kept)
    assert fresh.properties == Properties(routing_key="number")
    assert reader().renewed(Delivery(b"1", {}, Receipt("q", 1)), QUEUE).properties is None

    def kept_properties(given: Properties) -> Properties:
        assert given.expires_at is None
        return Properties(type="own")

    own = reader(kept_properties=kept_properties)
    assert own.renewed(one, QUEUE).properties == Properties(type="own")


def test_an_edited_message_is_one_that_its_handler_takes() -> None:
    one = delivery(b"7", headers={ENCODING: "gzip"})
    for expected in (None, 7):
        fresh = reader().renewed(one, QUEUE, Edit(8, expected))
        assert (fresh.body, fresh.headers) == (b"8", {})
    for edit, said in (
        (Edit(8, 9), CHANGED),
        (Edit("a"), "Expected `int`"),
        (Edit(object()), "the payload"),
    ):
        with pytest.raises(InvalidMessageError, match=said):
            reader().renewed(one, QUEUE, edit)
    broken = delivery(b"{")
    assert reader().renewed(broken, QUEUE, Edit(8)).body == b"8"
    with pytest.raises(InvalidMessageError, match=CHANGED):
        reader().renewed(broken, QUEUE, Edit(8, 7))
    assert reader().renewed(delivery(b"1", "other"), QUEUE, Edit("x")).body == b'"x"'
    assert reader().checkpoint_id(one, "m-1", QUEUE) == f"{QUEUE}:m-1"


def test_data_is_decoded_or_the_handler_is_named() -> None:
    number, nothing = route(takes_number).function, route(takes_nothing).function
    assert decoded(number, b"7") == 7
    assert decoded(nothing, b"{") is None
    with pytest.raises(Unreadable, match="takes_number: ") as caught:
        decoded(number, b'"a"')
    assert isinstance(caught.value.__cause__, msgspec.ValidationError)


# -- what a sender says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "headers"),
    [
        (None, {}),
        ({}, {}),
        ({"a": "b", "n": 7, "yes": True, "ratio": 0.5}, None),
        ({"X-Retry-a": 1, "x-hermes": 1, "x-matador-a": 1, "x-first-failure": 1}, {}),
        ({"x-death": 1, "X-Delivery-Count": 1, "CC": "q", "BCC": "q", "none": None}, {}),
        ({"x-matador": 1, "cc": "q", "x-mine": 1}, {"x-matador": 1, "cc": "q", "x-mine": 1}),
    ],
)
def test_metadata_are_headers_without_those_of_brokers(metadata: Any, headers: Any) -> None:
    expected = {"a": "b", "n": 7, "yes": True, "ratio": "0.5"} if headers is None else headers
    assert metadata_headers(metadata, "here") == expected


@pytest.mark.parametrize("metadata", [["a"], {1: "a"}, {"a": [1]}, {"a": b"x"}, 7])
def test_metadata_that_cannot_be_headers_are_refused(metadata: Any) -> None:
    with pytest.raises(InvalidMessageError, match="here: "):
        metadata_headers(metadata, "here")


def test_metadata_of_hooks_are_written_as_json_where_they_must_be() -> None:
    given = {"a": "b", "n": 7, "r": 0.5, "none": None, "list": [1, "x"]}
    assert _as_headers(given) == {"a": "b", "n": 7, "r": 0.5, "none": None, "list": '[1,"x"]'}
    assert _as_headers({"odd": {"path": complex(1, 2)}}) == {"odd": '{"path":"(1+2j)"}'}


def test_ids_are_texts() -> None:
    check_ids("here", None, None)
    check_ids("here", "a", None)
    check_ids("here", None, "b")
    for given in ((7, None), (None, 7), ("a", 7), (7, "b"), (b"a", "b")):
        with pytest.raises(InvalidMessageError, match=r"here: .* must be text"):
            check_ids("here", *given)


def test_a_queue_is_a_name_or_has_options() -> None:
    made = work_queue("orders", "here", concurrency=4)
    assert (made.name, made.concurrency, made.create) == ("orders", 4, True)
    assert work_queue("orders", "here", create=False).create is False
    own = WorkQueue("orders", concurrency=3, max_length=5)
    for concurrency in (None, 3):
        made = work_queue(own, "here", concurrency=concurrency)
        assert (made.concurrency, made.max_length) == (3, 5)
    with pytest.raises(ConfigurationError, match="give one of them"):
        work_queue(own, "here", concurrency=4)
    for odd in ("", "  ", None, 7):
        with pytest.raises(ConfigurationError, match="here: queue must be"):
            work_queue(odd, "here")  # type: ignore[arg-type] - users


# -- the context of a handler --------------------------------------------------------------------


async def test_a_handler_acknowledges_in_manual_mode_only() -> None:
    way = Plain()
    work = work_of(way, delivery(headers={"tenant": "t", "x-death": "x"}))
    auto = MessageContext(work, None, "")
    auto.ack()
    await auto.ack()
    with pytest.raises(ConfigurationError, match="mode='manual'"):
        auto.nack()
    assert (auto.message_id, auto.attempts, auto.metadata) == ("m-1", 1, {"tenant": "t"})
    for requeue in (None, False, True):
        acknowledgement = Acknowledgement()
        context = MessageContext(work, Scope(None, acknowledgement, lambda tell: None), "")
        await (context.ack() if requeue is None else context.nack(requeue))
        assert (acknowledgement.decided, acknowledgement.requeue) == (True, requeue)


def test_after_the_end_of_its_worker_nothing_can_be_acknowledged() -> None:
    way = Plain()
    work = work_of(way, delivery())
    made: list[MessageContext] = []

    async def make() -> None:
        acknowledgement = Acknowledgement()
        waiting = asyncio.create_task(acknowledgement.wait())
        await asyncio.sleep(0)
        made.append(MessageContext(work, Scope(None, acknowledgement, lambda tell: None), ""))
        waiting.cancel()

    asyncio.run(make())
    with pytest.raises(LifecycleError, match="the worker has ended"):
        made[0].ack()


def test_the_error_to_show_is_dont_retry_without_a_change() -> None:
    error = DontRetry("no")
    assert Failure(error, Discard("x"), True, 1).shown is error
