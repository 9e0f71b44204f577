"""Replays: chosen by SQL, sent once each to whom they were for, resumed after being killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.spark.frames import frame
from tests.spark.post import Post, lake_of, open_post

from matador.errors import ClusterError, ConfigurationError, EventNotRegisteredError
from matador.observe.journal.records import REPLAY_ID, REPLAY_OF
from matador.spark.lake import Lake


@dataclass(frozen=True)
class Archive:
    """A post office whose queues are empty, and a lake that knows what was in them."""

    post: Post
    lake: Lake

    def replayed(self, queue: str = "events") -> Counter[int]:
        """The numbers of the parcels in a queue."""
        return Counter(
            msgspec.json.decode(one.data)["number"] for one in self.post.envelopes(queue)
        )

    def clear(self) -> None:
        self.post.purge("events", "slow")


@pytest.fixture(scope="module")
def module_archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    post = open_post(tmp_path_factory.mktemp("replay"))
    post.send(range(30))
    return Archive(post, lake_of(post, spark))


@pytest.fixture
def archive(module_archive: Archive) -> Archive:
    module_archive.clear()
    return module_archive


def test_a_dry_run_counts_and_sends_nothing(archive: Archive) -> None:
    result = archive.lake.replay(
        archive.post.app, event="parcel.sent", where="data.number >= 20", dry_run=True
    )
    counts = {(one.event_key, one.subscriber): one.count for one in result.counts}
    assert counts == {("parcel.sent", "tell"): 10, ("parcel.sent", "count"): 10}
    assert (result.sent, result.dry_run) == (0, True)
    assert archive.post.messages("events") == []


def test_events_go_to_their_original_subscriber_marked_as_replays(archive: Archive) -> None:
    seen: list[tuple[int, int]] = []
    result = archive.lake.replay(
        archive.post.app,
        event="parcel.sent",
        subscriber="tell",
        where="data.number < 5",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (result.sent, result.failed) == (5, 0)
    assert seen[-1] == (5, 5)
    assert archive.post.messages("slow") == []
    originals = {row.id: row for row in archive.lake.events().where("replay_id is null").collect()}
    envelopes = archive.post.envelopes()
    for envelope in envelopes:
        metadata = envelope.docket.metadata
        assert metadata[REPLAY_ID] == result.replay_id
        original = originals[metadata[REPLAY_OF]]
        assert original.data_json == bytes(envelope.data).decode()
        assert envelope.id != original.id
        assert envelope.docket.target_subscriber == original.subscriber == "tell"
    archive.lake.ingest(archive.post.journal)
    known = archive.lake.events().where(f"replay_id = '{result.replay_id}'").collect()
    assert {row.replay_of for row in known} == {
        envelope.docket.metadata[REPLAY_OF] for envelope in envelopes
    }


def test_everybody_gets_an_event_once(archive: Archive) -> None:
    result = archive.lake.replay(archive.post.app, event="parcel.sent", to="all")
    assert result.sent == result.total == 60
    assert archive.replayed("events") == archive.replayed("slow") == Counter(range(30))


def test_another_subscriber_or_queue_can_be_chosen(archive: Archive) -> None:
    lake, app = archive.lake, archive.post.app
    assert lake.replay(app, event="parcel.sent", to="tell").sent == 30
    assert archive.replayed("events") == Counter(range(30))
    archive.clear()
    assert lake.replay(app, event="parcel.sent", subscriber="tell", to="slow").sent == 30
    assert archive.post.messages("events") == []
    assert {one.docket.target_subscriber for one in archive.post.envelopes("slow")} == {"tell"}


def test_events_of_a_time_are_chosen(spark: SparkSession, tmp_path: Path) -> None:
    """Those of the same file, too."""
    post = open_post(tmp_path)
    for part in (range(3), range(3, 8), range(8, 10)):
        post.send(part)
    lake = lake_of(post, spark)
    lake.compact()
    rows = lake.events().where("subscriber = 'tell'").collect()
    times = sorted({row.created_at.astimezone() for row in rows})
    assert len(times) == 3
    for limits, count in (
        ({"since": times[1]}, 7),
        ({"until": times[1]}, 3),
        ({"since": times[1], "until": times[2]}, 5),
    ):
        result = lake.replay(
            post.app, event="parcel.sent", subscriber="tell", dry_run=True, **limits
        )
        assert sum(one.count for one in result.counts) == count, limits


def test_the_same_replay_again_sends_nothing(archive: Archive) -> None:
    lake, post = archive.lake, archive.post
    first = lake.replay(post.reference, subscriber="count", replay_id="again")
    second = lake.replay(post.reference, subscriber="count", replay_id="again")
    third = lake.replay(post.app, replay_id="again")
    assert (first.sent, second.sent, third.sent) == (30, 30, 30)
    assert (first.resumed, second.resumed) == (False, True)
    assert archive.replayed("slow") == Counter(range(30))
    with pytest.raises(ConfigurationError, match="was started with"):
        lake.replay(post.app, subscriber="tell", replay_id="again")


def test_a_rate_is_kept(archive: Archive) -> None:
    started = time.monotonic()
    archive.lake.replay(archive.post.app, subscriber="tell", rate=20, replay_id="slowly")
    assert time.monotonic() - started > 1.3
    assert archive.replayed("events") == Counter(range(30))


def test_a_frame_is_published_as_an_event(archive: Archive, spark: SparkSession) -> None:
    rows = frame(spark, [(100, "x"), (101, "y")], "number int, to string")
    result = archive.lake.backfill(archive.post.app, "parcel.sent", rows, replay_id="fill")
    assert (result.sent, result.total) == (4, 4)
    archive.lake.backfill(archive.post.app, "parcel.sent", rows, replay_id="fill")
    assert archive.replayed("events") == archive.replayed("slow") == Counter([100, 101])


def test_wrong_wishes_are_explained(archive: Archive) -> None:
    lake, app = archive.lake, archive.post.app
    with pytest.raises(EventNotRegisteredError, match=r"did you mean 'parcel\.sent'"):
        lake.replay(app, event="parcel.snt")
    with pytest.raises(ConfigurationError, match="did you mean 'tell'"):
        lake.replay(app, subscriber="tel")
    with pytest.raises(ConfigurationError, match="did you mean 'slow'"):
        lake.replay(app, to="slw")
    with pytest.raises(ConfigurationError, match="name an event"):
        lake.replay(app, where="data.number > 1")
    with pytest.raises(ConfigurationError, match="since must be a time"):
        lake.replay(app, since="yesterday")
    with pytest.raises(ConfigurationError, match="rate must be"):
        lake.replay(app, rate=0)
    with pytest.raises(ConfigurationError, match="invalid replay id"):
        lake.replay(app, replay_id="../x")


def test_a_killed_replay_goes_on_and_sends_nothing_twice(archive: Archive) -> None:
    lake, post = archive.lake, archive.post
    program = Path(__file__).with_name("replay_program.py")
    running = subprocess.Popen(
        [sys.executable, program, post.reference, str(lake.path), "killed", "8"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 240
        while len(post.messages("events")) < 3:
            assert running.poll() is None, "it ended too early"
            assert time.monotonic() < deadline, "it never began"
            time.sleep(0.05)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    before = len(post.messages("events"))
    assert 3 <= before < 30
    result = lake.replay(post.reference, replay_id="killed")
    assert (result.resumed, result.sent, result.failed) == (True, 30, 0)
    assert archive.replayed("events") == Counter(range(30))


def test_an_executors_process_that_is_killed_sends_nothing_twice(archive: Archive) -> None:
    lake, post = archive.lake, archive.post
    (post.folder / "die").touch()
    # Without Spark's own repeats of tasks, as here, it is for the caller to go on.
    with pytest.raises(ClusterError, match="replay shot is not finished") as raised:
        lake.replay(post.reference, subscriber="tell", rate=60, replay_id="shot")
    assert "\n" not in str(raised.value)
    assert not (post.folder / "die").exists()
    assert 0 < len(post.messages("events")) < 30
    result = lake.replay(post.reference, replay_id="shot")
    assert (result.resumed, result.sent, result.failed) == (True, 30, 0)
    assert archive.replayed("events") == Counter(range(30))


def test_dead_letters_of_one_group_are_redriven(spark: SparkSession, tmp_path: Path) -> None:
    post = open_post(tmp_path)
    post.send(range(21))
    post.handle("events")
    lake = lake_of(post, spark)
    (group,) = lake.triage().collect()
    assert lake.redrive(post.app, signature=group.signature, dry_run=True).found == 3
    dead = post.messages("events.undeliverable")
    result = lake.redrive(post.app, signature=group.signature, subscriber="tell")
    assert (result.chosen, result.moved, result.missing) == (3, 3, 0)
    assert post.messages("events.undeliverable") == []
    assert {one.id for one in post.messages("events")} == {one.id for one in dead}
    again = lake.redrive(post.app, signature=group.signature, missing="replay")
    assert (again.moved, again.missing) == (0, 0), "they wait in their queue"
    post.purge("events")
    gone = lake.redrive(post.app, signature=group.signature, missing="replay")
    assert (gone.moved, gone.missing) == (0, 3)
    assert gone.replayed is not None
    assert gone.replayed.sent == 3
    assert len(post.messages("events")) == 3
    with pytest.raises(ConfigurationError, match="no dead letter has the signature"):
        lake.redrive(post.app, signature="nonsense")
