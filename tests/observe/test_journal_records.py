"""The records that facts become, the same for every way in: the data pipeline reads them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.observe.facts import CREATED, attempt, job, received, sent

from matador import JsonCodec, MessagePackCodec
from matador.codec.base import Codec
from matador.model.text import LONGEST_TEXT
from matador.observe import Journal
from matador.observe.journal import hook
from matador.observe.journal.records import (
    REPLAY_ID,
    DeliveryRecord,
    LineWriter,
    MalformedRecord,
    SentRecord,
    decode_record,
    micros,
    record_of_attempt,
    replay_id,
)
from matador.observe.journal.segments import finished
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.runtime.facts import EPOCH, Attempt, Sent
from matador.testing import make_docket, make_envelope
from matador.testing.clock import ManualClock

MICROS = round(CREATED * 1_000_000)


def lines(folder: Path) -> list[bytes]:
    return [line for path in finished(folder) for line in path.read_bytes().split(b"\n") if line]


async def recorded(folder: Path, *facts: Sent | Attempt) -> list[dict[str, Any]]:
    """The records of some facts, as JSON without what differs from run to run."""
    clock = ManualClock()
    journal = Journal(folder, clock=clock)
    journal.on_start()
    for fact in facts:
        if isinstance(fact, Sent):
            journal.on_sent([fact])
        else:
            journal.on_attempted([fact])
    await journal.on_stop()
    found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines(folder)]
    for one in found:
        assert one.pop("recorded_at") == round(clock.time() * 1_000_000)
        one.pop("worker", None)
    return found


async def test_an_event_that_was_sent(tmp_path: Path) -> None:
    plain, full = await recorded(
        tmp_path,
        sent(),
        sent(
            data=None,
            payload={"n": 1},
            before={"n": 0},
            due_at=CREATED + 60,
            correlation_id="c-1",
            metadata={REPLAY_ID: "r-1"},
            importance="must-investigate",
        ),
    )
    known = {
        "kind": "sent",
        "id": "m-1",
        "event_key": "order.placed",
        "subscriber": "handle",
        "queue": "shop.events",
        "transport": "memory",
        "created_at": MICROS,
        "importance": "should-investigate",
        "data": {"order_id": "o-1"},
    }
    assert plain == known
    assert full == known | {
        "importance": "must-investigate",
        "data": {"n": 1},
        "before": {"n": 0},
        "scheduled_for": MICROS + 60_000_000,
        "correlation_id": "c-1",
        "metadata": {REPLAY_ID: "r-1"},
        "replay_id": "r-1",
    }


async def test_a_job_that_was_sent(tmp_path: Path) -> None:
    fact = sent(**job(options={"job.maxAttempts": 5, "priority": 7}))
    (record,) = await recorded(tmp_path, fact)
    assert (record["event_key"], record["subscriber"]) == ("welcome", "emails")
    assert (record["queue"], record["way"]) == ("bull:emails", "job")
    assert record["options"] == {"job.maxAttempts": 5, "priority": 7}


async def test_a_success(tmp_path: Path) -> None:
    plain, delayed, of_job = await recorded(
        tmp_path,
        attempt(),
        attempt(received(due_at=CREATED + 0.2, metadata={REPLAY_ID: "r"}, correlation_id="c")),
        attempt(received(**job(attempt=3)), duration=1.0),
    )
    known = {
        "kind": "delivery",
        "id": "m-1",
        "event_key": "order.placed",
        "subscriber": "handle",
        "queue": "shop.events",
        "transport": "memory",
        "attempt": 1,
        "outcome": "success",
        "started_at": MICROS + 250_000,
        "duration_ms": 2.0,
        "wait_ms": 250.0,
        "since_created_ms": 250.0,
        "created_at": MICROS,
        "importance": "should-investigate",
        "deliveries": 2,
    }
    assert plain == known
    assert delayed == known | {"wait_ms": 50.0, "correlation_id": "c", "replay_id": "r"}
    assert of_job == known | {
        "event_key": "welcome",
        "subscriber": "emails",
        "queue": "bull:emails",
        "attempt": 3,
        "duration_ms": 1000.0,
        "way": "job",
    }


@pytest.mark.parametrize(
    ("due", "started", "waited", "since_created"),
    [
        (None, 1e-6, 0.001, 0.001),
        (1e-6, 2e-6, 0.001, 0.002),
        (1.0, 0.5, 0, 500.0),
        (None, -1, 0, 0),
    ],
)
def test_waiting_is_counted_to_the_microsecond_and_is_never_negative(
    due: float | None, started: float, waited: float, since_created: float
) -> None:
    message = received(created_at=0.0, due_at=due)
    record = record_of_attempt(attempt(message, started_at=started), 1, "w")
    assert isinstance(record, DeliveryRecord)
    assert (record.wait_ms, record.since_created_ms) == (waited, since_created)


@pytest.mark.parametrize("way", ["event", "job", "rpc", "message"])
async def test_failures(tmp_path: Path, way: str) -> None:
    retried, dead = await recorded(
        tmp_path,
        attempt(
            received(way=way),
            outcome="retry",
            error=ValueError("not today"),
            decision=RetryLater(1.0, "failed"),
        ),
        attempt(
            received(way=way),
            outcome="dead-letter",
            error=KeyError("x"),
            decision=SendToDeadLetters("unhandled" if way == "event" else "dlq", "no such address"),
            ran=False,
        ),
    )
    assert (retried["error_type"], retried["error"]) == ("ValueError", "not today")
    assert retried.get("reason") == ("failed" if way == "event" else None)
    assert "dead_letter_kind" not in retried
    kind = "unhandled" if way == "event" else "undeliverable"
    assert (dead["reason"], dead["dead_letter_kind"]) == ("no such address", kind)
    assert dead["ran"] is False


async def test_messages_that_cannot_be_read(tmp_path: Path) -> None:
    def malformed(**more: Any) -> Attempt:
        return attempt(
            received(body=b"\xff", **more),
            outcome="dead-letter",
            error=ValueError("not JSON"),
            decision=SendToDeadLetters("undeliverable", "malformed"),
            ran=False,
            malformed=True,
        )

    event, of_job = await recorded(tmp_path, malformed(), malformed(**job()))
    assert event == {
        "kind": "malformed",
        "queue": "shop.events",
        "transport": "memory",
        "reason": "not JSON",
        "raw": "/w==",
    }
    assert (of_job["kind"], of_job["event_key"], of_job["ran"]) == ("delivery", "welcome", False)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}', b'{"a": 1}'),
        (b'{\n  "a": 1\n}', b'{"a":1}'),
        (b"\xff\x00", b'"\xef\xbf\xbd\\u0000"'),
        (b"not json", b'"not json"'),
        (b'"\xff"', b'"\\"\xef\xbf\xbd\\""'),
        (b"[" * 100_000, None),
    ],
)
async def test_any_payload_fits_in_a_line(
    tmp_path: Path, data: bytes, expected: bytes | None
) -> None:
    await recorded(tmp_path, sent(way="rpc", data=data), sent(way="message", id="2"))
    first, second = [decode_record(line) for line in lines(tmp_path)]
    assert isinstance(first, SentRecord)
    assert isinstance(second, SentRecord)
    assert (first.way, second.way) == ("rpc", "message")
    if expected is not None:
        assert bytes(first.data) == expected


async def test_json_with_line_breaks_stays_on_one_line(tmp_path: Path) -> None:
    one, two, three = await recorded(
        tmp_path,
        sent(),
        sent(data=None, payload={"rows": msgspec.Raw(b"[\n1,\n 2]")}),
        sent(data=msgspec.Raw(b'{\n"a": 1}')),
    )
    assert [one["data"], two["data"], three["data"]] == [
        {"order_id": "o-1"},
        {"rows": [1, 2]},
        {"a": 1},
    ]


@dataclass
class Basket:
    goods: list[str]


async def test_a_payload_is_recorded_as_it_was_sent(tmp_path: Path) -> None:
    """Its owner may change it afterwards, and send it again."""
    journal = Journal(tmp_path)
    journal.on_start()
    basket = Basket(["tea"])
    journal.on_sent([sent(payload=basket), sent(payload=basket, receiver="another")])
    basket.goods.append("milk")
    journal.on_sent([sent(payload=basket)])
    await journal.on_stop()
    found = [msgspec.json.decode(line)["data"]["goods"] for line in lines(tmp_path)]
    assert found == [["tea"], ["tea"], ["tea", "milk"]]


async def test_a_record_that_cannot_be_encoded_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = sent(metadata={"by": "me"})
    journal = Journal(tmp_path)
    journal.on_start()
    journal.on_sent([good, sent(metadata={"by": object()}), sent(payload=object()), good])
    await journal.on_stop()
    assert len(lines(tmp_path)) == 2
    assert caplog.text.count("could not encode a record; it is left out") == 2


async def test_records_are_made_a_moment_later_or_with_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "_A_MOMENT", 60)
    journal = Journal(tmp_path)
    journal.on_start()
    journal.on_sent([sent()])
    assert lines(tmp_path) == []
    await journal.flush()
    assert len(lines(tmp_path)) == 1
    await journal.on_stop()


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_any_error_and_any_reason_can_be_recorded(tmp_path: Path) -> None:
    def failed(error: Exception, reason: str) -> Attempt:
        decision = SendToDeadLetters("undeliverable", reason)
        return attempt(outcome="dead-letter", error=error, decision=decision)

    first, second = await recorded(
        tmp_path, failed(_Mute(), "a\udcff"), failed(ValueError("b\udcff" * 3000), "c" * 9000)
    )
    assert (first["error"], first["reason"]) == ("_Mute", "a?")
    assert second["error"].startswith("b?b?")
    assert len(second["error"]) == len(second["reason"]) == LONGEST_TEXT


def test_a_record_without_a_way_is_one_of_an_event() -> None:
    line = (
        b'{"kind":"sent","id":"1","event_key":"a","subscriber":"b","queue":"q","transport":"t",'
        b'"created_at":1,"importance":"can-ignore","data":{},"recorded_at":1}'
    )
    record = decode_record(line)
    assert isinstance(record, SentRecord)
    assert (record.way, record.options) == ("event", None)
    assert msgspec.json.encode(record) == line
    assert not isinstance(record, DeliveryRecord | MalformedRecord)


# -- lines of stored messages ----------------------------------------------------------------------


def lined(codec: Codec, body: bytes, **options: Any) -> tuple[Any, int]:
    writer = LineWriter("shop.lake", "sqlite", codec, "w-1", "tap")
    stamp = ManualClock()
    line, attempts = writer.line(body, options.get("headers", {}), options.get("problem"), stamp)
    assert b"\n" not in line
    record = decode_record(line)
    assert record.recorded_at == round(stamp.time() * 1_000_000)
    return record, attempts


@pytest.mark.parametrize("codec", [JsonCodec(), MessagePackCodec()])
def test_a_stored_event_is_recorded_as_if_it_had_been_told(codec: Codec) -> None:
    encode = msgspec.json.encode if isinstance(codec, JsonCodec) else msgspec.msgpack.encode
    data, before = (msgspec.Raw(encode({"n": n})) for n in (1, 0))
    docket = make_docket(
        event_key="order.placed",
        subscriber="handle",
        attempts=4,
        correlation_id="c-1",
        metadata={REPLAY_ID: "r-1"},
        importance="must-investigate",
        scheduled_for=EPOCH + timedelta(days=1, seconds=1, milliseconds=1),
        created_at=EPOCH + timedelta(days=2, seconds=3, milliseconds=4),
    )
    encoded = codec.encode(make_envelope(data, id="m-1", docket=docket, before=before))
    record, attempts = lined(codec, encoded.body, headers=encoded.headers)
    assert attempts == 4
    assert isinstance(record, SentRecord)
    assert (record.id, record.event_key, record.subscriber) == ("m-1", "order.placed", "handle")
    assert (record.queue, record.transport, record.source) == ("shop.lake", "sqlite", "tap")
    assert record.created_at == (2 * 86_400 + 3) * 1_000_000 + 4000
    assert record.scheduled_for == 86_401_001_000
    assert micros(EPOCH - timedelta(days=1, microseconds=1)) == -86_400_000_001
    assert (record.correlation_id, record.replay_id) == ("c-1", "r-1")
    assert (record.metadata, record.importance) == ({REPLAY_ID: "r-1"}, "must-investigate")
    assert (msgspec.json.decode(record.data), record.way) == ({"n": 1}, "event")
    assert record.earlier is not None
    assert msgspec.json.decode(record.earlier) == {"n": 0}


def test_a_stored_event_that_says_little_is_recorded_too() -> None:
    codec = JsonCodec()
    envelope = make_envelope(msgspec.Raw(b'{\n"n": 1}'), event_key="a", subscriber="b")
    encoded = codec.encode(envelope)
    record, attempts = lined(codec, encoded.body, headers=encoded.headers)
    assert isinstance(record, SentRecord)
    assert (bytes(record.data), record.earlier, record.scheduled_for) == (b'{"n":1}', None, None)
    assert (record.metadata, record.replay_id, attempts) == (None, None, 1)


@pytest.mark.parametrize(
    ("body", "problem", "reason"),
    [(b"\xff", None, ""), (b"{}", "a header is broken", "a header is broken"), (b"", None, "")],
)
def test_what_is_no_event_is_recorded_as_it_is(
    body: bytes, problem: str | None, reason: str
) -> None:
    record, attempts = lined(JsonCodec(), body, problem=problem)
    assert isinstance(record, MalformedRecord)
    assert (attempts, record.queue, record.transport) == (0, "shop.lake", "sqlite")
    assert (base64.b64decode(record.raw), record.worker) == (body, "w-1")
    assert record.reason
    assert reason in record.reason


@pytest.mark.parametrize(
    ("metadata", "found"),
    [(None, None), ({}, None), ({REPLAY_ID: "r"}, "r"), ({REPLAY_ID: 7}, None), ({"a": 1}, None)],
)
def test_the_id_of_a_replay_is_a_text(metadata: Any, found: str | None) -> None:
    assert replay_id(metadata) == found
