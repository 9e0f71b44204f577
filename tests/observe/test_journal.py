"""The journal: everything recorded, nothing waits for it, and no half line is ever seen."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.observe.facts import attempt as attempted
from tests.observe.facts import sent as sent_fact

from matador import (
    DontRetry,
    Envelope,
    Hooks,
    Matador,
    Schema,
    StandardRetryPolicy,
    event,
    subscriber,
)
from matador.errors import ConfigurationError
from matador.jobs import Job, Queue, Worker
from matador.model.message import Message
from matador.observe import Journal
from matador.observe.journal import hook as hook_module
from matador.observe.journal import writer as writer_module
from matador.observe.journal.records import (
    REPLAY_ID,
    DeliveryRecord,
    DroppedRecord,
    MalformedRecord,
    Record,
    SentRecord,
    decode_record,
)
from matador.observe.journal.segments import Segment, finished, recover, writer_name
from matador.observe.journal.writer import JournalWriter
from matador.testing import ManualClock, wait_for
from matador.transports import MemoryTransport


@event("order.placed", description="An order was placed.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


@event("user.seen", description="A user was seen.")
class UserSeen(BaseModel):
    name: str


@subscriber(description="Succeeds.", idempotent="yes")
async def bill(envelope: Envelope[OrderPlaced]) -> None: ...


@subscriber(description="Fails until it is told not to.", idempotent="yes")
async def ship(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.amount < 0:
        raise DontRetry("nothing to ship")
    if envelope.docket.attempts == 1 and envelope.data.amount == 7:
        raise ValueError("not today")


@subscriber(description="Succeeds.", idempotent="yes")
async def greet(envelope: Envelope[UserSeen]) -> None: ...


def records(folder: Path) -> list[Record]:
    return [
        decode_record(line) for path in finished(folder) for line in path.read_bytes().splitlines()
    ]


def of_kind(kind: type[Any], folder: Path) -> list[Any]:
    return [record for record in records(folder) if isinstance(record, kind)]


def application(folder: Path, **options: Any) -> Matador:
    return Matador(
        MemoryTransport(),
        schema=Schema({OrderPlaced: [bill, ship], UserSeen: [greet]}),
        consume_from=["events"],
        retry=StandardRetryPolicy(base_delay=0.01),
        hooks=[Journal(folder, **options)],
    )


async def test_every_envelope_sent_and_every_outcome_is_recorded(tmp_path: Path) -> None:
    async with application(tmp_path) as app:
        await app.send(OrderPlaced("1", 5), correlation_id="c-1", metadata={"tenant": "acme"})
        await app.send(OrderPlaced("2", 7))
        await app.send(OrderPlaced("3", -1), before=OrderPlaced("3", 4))
        await app.send(UserSeen(name="Ada"), delay=0.01)
        transport = app.transport
        assert isinstance(transport, MemoryTransport)
        await wait_for(lambda: transport.completed("matador.events") == 6)

    sent: list[SentRecord] = of_kind(SentRecord, tmp_path)
    assert len(sent) == 7
    first = sent[0]
    assert (first.event_key, first.subscriber, first.queue) == (
        "order.placed",
        "bill",
        "matador.events",
    )
    assert msgspec.json.decode(first.data) == {"order_id": "1", "amount": 5}
    assert (first.correlation_id, first.metadata) == ("c-1", {"tenant": "acme"})
    assert msgspec.json.decode(sent[5].before or b"") == {"order_id": "3", "amount": 4}
    assert msgspec.json.decode(sent[6].data) == {"name": "Ada"}
    assert sent[6].scheduled_for is not None
    assert sent[6].scheduled_for > sent[6].created_at

    by_id = {record.id: record for record in sent}
    outcomes = sorted(
        (
            by_id[one.id].subscriber,
            msgspec.json.decode(by_id[one.id].data).get("order_id"),
            one.attempt,
            one.outcome,
        )
        for one in of_kind(DeliveryRecord, tmp_path)
        if one.event_key == "order.placed"
    )
    assert outcomes == [
        ("bill", "1", 1, "success"),
        ("bill", "2", 1, "success"),
        ("bill", "3", 1, "success"),
        ("ship", "1", 1, "success"),
        ("ship", "2", 1, "retry"),
        ("ship", "2", 2, "success"),
        ("ship", "3", 1, "dead-letter"),
    ]
    failed = next(one for one in of_kind(DeliveryRecord, tmp_path) if one.outcome == "retry")
    assert (failed.error_type, failed.error) == ("ValueError", "not today")
    assert failed.worker
    dead = next(one for one in of_kind(DeliveryRecord, tmp_path) if one.outcome == "dead-letter")
    assert (dead.dead_letter_kind, dead.reason) == ("undeliverable", "nothing to ship")


async def test_an_outcome_says_how_long_it_took_and_how_long_it_was_waited_for(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    @subscriber(description="Takes its time.", idempotent="yes")
    async def slow(envelope: Envelope[OrderPlaced]) -> None:
        manual_clock.advance(0.25)

    app = Matador(
        MemoryTransport(clock=manual_clock),
        schema=Schema({OrderPlaced: [slow]}),
        consume_from=["events"],
        hooks=[Journal(tmp_path)],
        clock=manual_clock,
    )
    async with app:
        await app.send(OrderPlaced("1", 5), delay=10)
        manual_clock.advance(12)
        await wait_for(lambda: manual_clock.monotonic() > 12)
    (handled,) = of_kind(DeliveryRecord, tmp_path)
    assert handled.duration_ms == pytest.approx(250)
    assert handled.wait_ms == pytest.approx(2000), "since it was due, not since it was sent"


async def test_a_message_from_a_sender_whose_clock_is_ahead_did_not_wait(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    @subscriber(description="Takes 1.2345678 ms.", idempotent="yes")
    async def precise(envelope: Envelope[OrderPlaced]) -> None:
        manual_clock.advance(0.0012345678)

    ahead = ManualClock(start=manual_clock.now() + timedelta(minutes=1))
    transport = MemoryTransport(clock=manual_clock)
    app = Matador(
        transport,
        schema=Schema({OrderPlaced: [precise]}),
        consume_from=["events"],
        hooks=[Journal(tmp_path)],
        clock=manual_clock,
    )
    async with app.with_(clock=ahead, consume_from=(), hooks=()) as sender:
        await sender.send(OrderPlaced("1", 5))
    async with app:
        await wait_for(lambda: transport.completed("matador.events") == 1)
    (handled,) = of_kind(DeliveryRecord, tmp_path)
    assert (handled.wait_ms, handled.since_created_ms) == (0.0, 0.0)
    assert handled.duration_ms == 1.235, "in milliseconds, to the microsecond"


async def test_bytes_that_are_not_an_envelope_are_recorded_as_they_are(tmp_path: Path) -> None:
    async with application(tmp_path) as app:
        await app.transport.send([Message("x", "matador.events", b"\xff not json")])
        transport = app.transport
        assert isinstance(transport, MemoryTransport)
        await wait_for(lambda: transport.dead_letters("matador.events", "undeliverable"))
    (found,) = of_kind(MalformedRecord, tmp_path)
    assert found.raw == "/yBub3QganNvbg=="
    assert found.queue == "matador.events"


async def test_a_replay_is_known_as_one(tmp_path: Path) -> None:
    async with application(tmp_path) as app:
        await app.send(OrderPlaced("1", 5), metadata={REPLAY_ID: "r-1"})
        await app.wait_idle(5)
    assert {one.replay_id for one in of_kind(SentRecord, tmp_path)} == {"r-1"}


async def test_segments_are_rotated_by_size_and_by_age(tmp_path: Path) -> None:
    async with application(tmp_path / "size", rotate_size=1) as app:
        for n in range(3):
            await app.send(OrderPlaced(str(n), 5))
            count = n
            await wait_for(lambda count=count: len(list(finished(tmp_path / "size"))) > count)
    journal = Journal(tmp_path / "age", rotate_age=0.05)
    app = Matador(MemoryTransport(), schema=Schema({UserSeen: [greet]}), hooks=[journal])
    async with app:
        await app.send(UserSeen(name="Ada"))
        await wait_for(lambda: list(finished(tmp_path / "age")))


async def test_two_applications_share_one_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    apps = [
        Matador(MemoryTransport(name=name), schema=Schema({UserSeen: [greet]}), hooks=[journal])
        for name in ("a", "b")
    ]
    await apps[0].start()
    await apps[1].start()
    await apps[0].send(UserSeen(name="Ada"))
    await apps[0].shutdown()
    await apps[1].send(UserSeen(name="Bob"))
    await apps[1].shutdown()
    assert {one.transport for one in of_kind(SentRecord, tmp_path)} == {"a", "b"}


def test_a_segment_left_behind_is_finished_up_to_its_last_whole_line(tmp_path: Path) -> None:
    left = Segment(tmp_path, writer_name(), 1)
    left.append(b'{"a":1}\n{"b":2}\n')
    assert recover(tmp_path) == []  # its writer lives
    os.write(left._file, b'{"half')
    os.close(left._file)  # as the kernel does for a process that was killed
    (path,) = recover(tmp_path)
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n'
    assert recover(tmp_path) == []


def test_a_segment_without_a_whole_line_is_removed(tmp_path: Path) -> None:
    left = Segment(tmp_path, writer_name(), 1)
    os.write(left._file, b'{"half')
    os.close(left._file)
    assert recover(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


_WRITER = """
import asyncio, sys
from pathlib import Path
from dataclasses import dataclass
from matador import Matador, Schema, event, subscriber, Envelope
from matador.observe import Journal
from matador.transports import MemoryTransport

@event("n.counted", description="A number.")
@dataclass
class Counted:
    n: int

@subscriber(description="Nothing.")
async def nothing(envelope: Envelope[Counted]) -> None: ...

async def main():
    journal = Journal(sys.argv[1])
    schema = Schema({Counted: [nothing]})
    async with Matador(MemoryTransport(), schema=schema, hooks=[journal]) as app:
        for n in range(1_000_000):
            await app.send(Counted(n))
            if n % 50 == 49:
                await journal.flush()
                print(n, flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_loses_nothing_it_had_flushed_and_leaves_no_half_line(
    tmp_path: Path,
) -> None:
    script = tmp_path / "writer.py"
    script.write_text(_WRITER)
    folder = tmp_path / "journal"
    flushed = 0
    with subprocess.Popen(
        [sys.executable, script, folder], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            flushed = int(line)
            if flushed >= 400:
                process.send_signal(signal.SIGKILL)
                break
    recover(folder)
    numbers = [msgspec.json.decode(one.data)["n"] for one in of_kind(SentRecord, folder)]
    assert numbers == sorted(set(numbers))
    assert set(range(flushed + 1)) <= set(numbers)
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_stops_nobody_and_the_loss_is_on_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    folder.rename(tmp_path / "elsewhere")
    folder.touch()  # nowhere to write to
    writer.put(b'{"kind":"lost"}\n' * 3, 3)
    writer.flush()
    assert writer.dropped == 3
    assert "losing records (3 so far)" in caplog.text
    folder.unlink()
    for _ in range(2):
        writer.put(b'{"kind":"x"}\n', 1)
        writer.flush()
    writer.stop()
    first, *rest = [line for path in finished(folder) for line in path.read_bytes().splitlines()]
    confession = decode_record(first)
    assert isinstance(confession, DroppedRecord)
    assert confession.count == 3
    assert rest == [b'{"kind":"x"}'] * 2, "said once"


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "ends"])
async def test_a_deleted_folder_is_made_again_and_the_loss_is_on_record(
    tmp_path: Path, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    writer.put(b'{"kind":"sent"}\n{"kind":"sent"}\n', 2)
    await wait_for(lambda: any(one.stat().st_size for one in folder.glob(".open-*")))
    shutil.rmtree(folder)
    if goes_on:
        writer.put(b'{"kind":"sent"}\n', 1)
        writer.flush()
        (segment,) = finished(folder)
        first, kept = segment.read_bytes().splitlines()
        confession = decode_record(first)
        assert isinstance(confession, DroppedRecord)
        assert (confession.count, kept) == (2, b'{"kind":"sent"}')
    writer.stop()
    assert writer.dropped == 2
    assert f"(2 so far): a file in {folder} was deleted" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_disk_that_takes_nothing_costs_records_not_memory(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, rotate_size=1 << 20, rotate_age=60, max_pending=10)
    for _ in range(3):
        writer.put(b"12345\n", 1)  # not started: nobody takes it
    assert writer.dropped == 1


def test_what_was_written_makes_room_for_more(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, rotate_size=1 << 20, rotate_age=60, max_pending=10)
    writer.start()
    for _ in range(3):
        writer.put(b"12345\n12345\n", 2)
        writer.flush()
    writer.stop()
    assert writer.dropped == 0


# -- bursts ----------------------------------------------------------------------------------------

BURST = 600
LONG = "x" * 4096
SMALL = 64 * 1024  # bytes that may be pending: far less than a burst


def numbers_in(folder: Path) -> list[str]:
    return [msgspec.json.decode(one.data)["order_id"] for one in of_kind(SentRecord, folder)]


@pytest.mark.parametrize("provider", ["memory://", "sqlite:///{folder}/shop.db"])
@pytest.mark.parametrize("at_once", [True, False], ids=["in one call", "one by one"])
async def test_a_burst_larger_than_what_may_be_pending_is_recorded(
    provider: str, at_once: bool, tmp_path: Path
) -> None:
    """On ``memory://``, no send ever lets the event loop run."""
    journal = Journal(tmp_path / "journal", max_pending=SMALL)
    schema = Schema({OrderPlaced: [bill]})
    url = provider.format(folder=tmp_path)
    events = [OrderPlaced(f"{n}{LONG}", n) for n in range(BURST)]
    async with Matador(url, schema=schema, hooks=[journal]) as app:
        if at_once:
            await app.send_many(events)
        else:
            for one in events:
                await app.send(one)
    assert numbers_in(tmp_path / "journal") == [one.order_id for one in events]
    assert journal.dropped == 0
    assert of_kind(DroppedRecord, tmp_path / "journal") == []


async def test_a_burst_of_jobs_and_their_attempts_is_recorded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", max_pending=SMALL)
    url = f"sqlite:///{tmp_path}/jobs.db"

    handled: list[str] = []

    async def handle(job: Job[Any]) -> None:
        handled.append(job.id)

    async with Queue("emails", provider=url, hooks=[journal]) as queue:
        await queue.add_many([("send", {"text": LONG}) for _ in range(BURST)])
        async with Worker("emails", handle, provider=url, hooks=[journal]):
            await wait_for(lambda: len(handled) == BURST, timeout=60)
    assert len(of_kind(SentRecord, tmp_path / "journal")) == BURST
    assert len(of_kind(DeliveryRecord, tmp_path / "journal")) == BURST
    assert journal.dropped == 0


class SlowDisk:
    """Lets a segment take nothing until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()
        append = Segment.append

        def slowly(segment: Segment, lines: bytes) -> None:
            self.asked.set()
            assert self.go_on.wait(60)
            append(segment, lines)

        monkeypatch.setattr(Segment, "append", slowly)


async def test_a_sender_waits_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_PATIENCE", 60.0)
    disk = SlowDisk(monkeypatch)
    journal = Journal(tmp_path, max_pending=SMALL)
    app = Matador(MemoryTransport(), schema=Schema({OrderPlaced: [bill]}), hooks=[journal])
    events = [OrderPlaced(f"{n}{LONG}", n) for n in range(3 * BURST)]
    async with app:
        sending = asyncio.create_task(app.send_many(events))
        await wait_for(disk.asked.is_set)
        assert not sending.done()
        assert journal.dropped == 0
        disk.go_on.set()
        await sending
    assert numbers_in(tmp_path) == [one.order_id for one in events]
    assert journal.dropped == 0


async def test_what_a_disk_does_not_take_in_time_is_on_record_when_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "_PATIENCE", 0.0)
    disk = SlowDisk(monkeypatch)
    journal = Journal(tmp_path, max_pending=SMALL)
    app = Matador(MemoryTransport(), schema=Schema({OrderPlaced: [bill]}), hooks=[journal])
    events = [OrderPlaced(f"{n}{LONG}", n) for n in range(3 * BURST)]
    async with app:
        await app.send_many(events)  # nobody waits any longer
        await wait_for(lambda: journal.dropped > 0)
        disk.go_on.set()
    recorded = len(numbers_in(tmp_path))
    assert 0 < recorded < len(events)
    assert recorded + journal.dropped == len(events)
    assert sum(one.count for one in of_kind(DroppedRecord, tmp_path)) == journal.dropped
    assert "the disk is too slow" in caplog.text
    assert "ended with lost records" not in caplog.text


async def test_records_lost_at_the_very_end_are_on_record(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    writer.put(b"x\n" * 3, 3)
    await wait_for(lambda: any(one.stat().st_size for one in folder.glob(".open-*")))
    shutil.rmtree(folder)
    writer.stop()
    (lost,) = of_kind(DroppedRecord, folder)
    assert (lost.count, writer.dropped) == (3, 3)


class _Both(Hooks):
    def __init__(self) -> None:
        self.seen = 0

    def on_enqueue_success(self, event: object) -> None:
        self.seen += 1


async def test_the_journal_goes_with_other_hooks(tmp_path: Path) -> None:
    other = _Both()
    app = Matador(
        MemoryTransport(), schema=Schema({UserSeen: [greet]}), hooks=[Journal(tmp_path), other]
    )
    async with app:
        await asyncio.gather(*(app.send(UserSeen(name=str(n))) for n in range(10)))
    assert other.seen == len(of_kind(SentRecord, tmp_path)) == 10


_FORKS = """
import os, sys
from pathlib import Path
from matador.observe.journal.writer import JournalWriter

journal = JournalWriter(Path(sys.argv[1]), rotate_size=1, rotate_age=60, max_pending=1 << 20)
for number in range(3):
    if os.fork() == 0:
        journal.start()
        for n in range(20):
            journal.put(b'{"by":%d,"n":%d}\\n' % (number, n), 1)
            journal.flush()
        journal.stop()
        os._exit(journal.dropped)
sys.exit(sum(os.wait()[1] for _ in range(3)))
"""


def test_processes_that_fork_after_the_journal_was_made_write_to_files_of_their_own(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", _FORKS, tmp_path], check=True, timeout=60)
    lines = [line for path in finished(tmp_path) for line in path.read_bytes().splitlines()]
    assert len(set(lines)) == len(lines) == 60


def test_whatever_goes_wrong_in_the_writer_the_thread_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(segment: Segment, lines: bytes) -> None:
        raise MemoryError

    writer = JournalWriter(tmp_path, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", broken)
        writer.put(b"x\n", 1)
        writer.flush()
    assert writer.dropped == 1
    assert "losing records (1 so far): MemoryError" in caplog.text
    writer.put(b"y\n", 1)
    writer.stop()
    assert [path.read_bytes().splitlines()[-1] for path in finished(tmp_path)] == [b"y"]


def test_a_segment_that_cannot_be_finished_is_recovered_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = JournalWriter(tmp_path, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    with monkeypatch.context() as patched:

        def fails(file: int) -> None:
            raise OSError("no luck")

        patched.setattr(os, "fsync", fails)
        writer.put(b"x\n", 1)
        writer.flush()
    assert list(finished(tmp_path)) == []
    assert "could not finish a segment; the next start recovers it" in caplog.text
    writer.put(b"y\n", 1)
    writer.stop()
    writer.start()
    writer.stop()
    assert sorted(path.read_bytes() for path in finished(tmp_path)) == [b"x\n", b"y\n"]


def test_a_full_disk_is_told_of_once_and_again_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, rotate_size=1 << 20, rotate_age=60, max_pending=1 << 20)
    writer.start()
    folder.rename(tmp_path / "elsewhere")
    folder.touch()  # nowhere to write to
    for _ in range(5):
        writer.put(b"x\n", 1)
        writer.flush()
    writer.stop()
    assert writer.dropped == 5
    assert caplog.text.count("the journal is losing records") == 1
    assert "the journal ended with lost records (5)" in caplog.text


@pytest.mark.parametrize("folder", ["s3a://key:secret@bucket/j", "hdfs://n/j", "dbfs:/j"])
def test_a_folder_that_is_none_is_refused_and_nothing_is_made(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (folder, Path(folder)):
        with pytest.raises(
            ConfigurationError, match="is not supported, only local paths"
        ) as caught:
            Journal(given)
        assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_is_the_path_it_names(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        assert Journal(url).folder == tmp_path / "a b"
    assert Journal(Path(f"file://{tmp_path}")).folder == tmp_path
    assert Journal("a:b").folder == Path("a:b")
    with pytest.raises(ConfigurationError, match="of another host"):
        Journal(f"file://server{tmp_path}")


# -- the writer by itself --------------------------------------------------------------------------


def segments(folder: Path) -> list[list[bytes]]:
    return [path.read_bytes().splitlines() for path in finished(folder)]


def test_segments_have_numbers_of_their_own_and_a_size(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, rotate_size=4, rotate_age=600, max_pending=1 << 20)
    assert not writer.running
    writer.start()
    assert writer.running
    for number in range(3):
        writer.put(b"%d\n" % number, 1)
        writer.flush()
    writer.put(b"12345\n", 1)
    writer.put(b"a\nb\n", 2)
    writer.stop()
    assert not writer.running
    writer.stop()
    names = [path.name for path in finished(tmp_path)]
    assert [name[-11:-6] for name in names][:3] == ["00001", "00002", "00003"]
    assert all(f"-{writer.name}-" in name for name in names)
    lines = [line for segment in segments(tmp_path) for line in segment]
    assert lines == [b"0", b"1", b"2", b"12345", b"a", b"b"]


async def test_a_segment_of_the_full_size_appears_by_itself(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, rotate_size=4, rotate_age=600, max_pending=1 << 20)
    writer.start()
    writer.put(b"abc\n", 1)
    await wait_for(lambda: segments(tmp_path) == [[b"abc"]])
    writer.put(b"de\n", 1)
    await wait_for(lambda: any(one.stat().st_size for one in tmp_path.glob(".open-*")))
    assert len(segments(tmp_path)) == 1, "a byte less does not"
    writer.stop()
    assert segments(tmp_path) == [[b"abc"], [b"de"]]


def test_lines_wait_until_the_disk_has_taken_none_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, going, go = [100.0], threading.Event(), threading.Event()
    append = Segment.append

    def slow(segment: Segment, lines: bytes) -> None:
        going.set()
        go.wait(60)
        append(segment, lines)

    monkeypatch.setattr(Segment, "append", slow)
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])
    writer = JournalWriter(tmp_path, rotate_size=1 << 20, rotate_age=1e9, max_pending=10)
    writer.put(b"early\n", 1)
    assert not writer.is_full, "nobody waits for a writer that was not started"
    writer.start()
    assert going.wait(60)
    assert not writer.is_full
    writer.put(b"1234\n", 1)
    assert writer.is_full
    now[0] += 9.9
    assert writer.is_full
    now[0] += 0.1
    assert not writer.is_full, "it would wait for ever"
    writer.put(b"lost\n", 1)
    writer.put(b"lost\n", 1)
    assert writer.dropped == 2
    assert caplog.text.count("the disk is too slow") == 1
    go.set()
    monkeypatch.undo()
    writer.flush()
    assert not writer.is_full
    writer.stop()
    lines = [line for segment in segments(tmp_path) for line in segment]
    kept = [line for line in lines if b"dropped" not in line]
    assert kept == [b"early", b"1234"]
    (confession,) = [decode_record(line) for line in lines if b"dropped" in line]
    assert isinstance(confession, DroppedRecord)
    assert (confession.count, confession.reason) == (2, "the disk is too slow")
    assert confession.worker == writer.name


def test_a_flush_of_what_is_not_running_returns(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, rotate_size=1, rotate_age=1, max_pending=1)
    writer.flush()
    writer.start()
    writer.flush()
    writer.stop()
    writer.flush()
    assert list(tmp_path.iterdir()) == [], "an empty segment is none"


async def test_a_journal_is_started_and_stopped_with_its_first_and_last_user(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    assert repr(journal) == f"Journal({str(tmp_path)!r})"
    for _ in range(2):
        journal.on_start()
        thread = journal._writer._thread
        journal.on_start()
        assert journal._writer._thread is thread
        await journal.on_stop()
        assert journal._writer.running
        await journal.on_stop()
        assert not journal._writer.running
    assert journal.dropped == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rotate_size": 0}, "rotate_size"),
        ({"rotate_age": 0}, "rotate_age"),
        ({"max_pending": 0}, "max_pending"),
        ({"storage_options": {"a": 1}}, "need ship_to"),
        ({"delete_shipped": True}, "need ship_to"),
    ],
)
def test_options_of_a_journal_are_checked(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Journal(tmp_path, **options)
    Journal(tmp_path, rotate_size=1, rotate_age=0.01, max_pending=1)


async def test_a_loss_is_recorded_by_itself_once_the_disk_takes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_RETRY", 0.01)
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, rotate_size=1 << 20, rotate_age=600, max_pending=1 << 20)
    writer.start()
    thread = writer._thread
    assert thread is not None
    assert (thread.name, thread.daemon) == ("matador-journal", True)
    folder.rename(tmp_path / "elsewhere")
    folder.touch()  # nowhere to write to
    writer.put(b"lost\n", 1)
    await wait_for(lambda: writer.dropped == 1)
    folder.unlink()
    await wait_for(lambda: any(one.stat().st_size for one in folder.glob(".open-*")))
    writer.stop()
    ((line,),) = segments(folder)
    assert b'"count":1' in line


async def test_who_adds_to_many_records_waits_until_they_are_handed_to_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_module, "_MANY", 3)
    journal = Journal(tmp_path)
    journal.on_start()
    assert journal.on_attempted([attempted()] * 3) is None
    waiting = journal.on_attempted([attempted()])
    assert waiting is not None
    assert len(journal._kept) == 4
    await waiting
    assert len(journal._kept) <= 3
    assert journal.on_sent([sent_fact()] * 3) is None
    waiting = journal.on_sent([sent_fact()])
    assert waiting is not None
    await waiting
    await journal.on_stop()
    assert len(records(tmp_path)) == 8
