"""What travels with a job: attempts, options and the reason of a cancellation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.observe.facts import attempt as attempted
from tests.observe.facts import job as of_job
from tests.observe.facts import received as arrived

from matador.errors import DontRetry, InvalidJobError
from matador.jobs import Exponential, Fixed, Keep, Unique
from matador.jobs.events import (
    JobActive,
    JobCompleted,
    JobEvents,
    JobFailed,
    JobProgress,
    JobRetrying,
)
from matador.jobs.job import metadata_from
from matador.jobs.options import MakeId
from matador.jobs.schedules import schedule_from
from matador.jobs.wire import (
    PRIORITY,
    JobMaker,
    StoredJob,
    canceled_text,
    new_id,
    received,
    sent_fact,
    stored_message,
    successor,
    was_canceled,
)
from matador.model import job as names
from matador.model.job import JobCapabilities, JobSchedule
from matador.model.message import (
    ERROR_TYPE_HEADER,
    TRACEBACK_HEADER,
    Delivery,
    Message,
    Properties,
    Receipt,
)
from matador.policy.retry import RetryLater, SendToDeadLetters
from matador.runtime.way import Failure
from matador.testing import ManualClock

BODY = b'{"_jobData":[1],"_metadata":{"a":1}}'


@pytest.mark.parametrize(
    ("counted", "elsewhere", "deliveries", "attempt"),
    [(0, 0, 1, 1), (2, 0, 1, 3), (2, 3, 1, 6), (2, 3, 4, 9), (0, 0, 0, 1)],
)
def test_an_attempt_is_counted_whoever_made_it(
    counted: int, elsewhere: int, deliveries: int, attempt: int
) -> None:
    receipt = Receipt("jobs", 1, deliveries, attempts_elsewhere=elsewhere)
    work = received(Delivery(BODY, {names.ATTEMPTS: counted, names.MAX_ATTEMPTS: 5}, receipt), 9.0)
    assert (work.attempt, work.max_attempts) == (attempt, 5)
    assert (work.encoded, work.metadata) == (b"[1]", {"a": 1})


def test_what_is_missing_of_a_job_has_a_default() -> None:
    work = received(Delivery(b"[1]", {}, Receipt("jobs", 1, 1)), 9.0)
    assert (work.name, work.attempt, work.max_attempts) == ("job", 1, 1)
    assert (work.created_at, work.received_at, work.error) == (9.0, 9.0, None)
    assert (work.encoded, work.metadata) == (b"[1]", {})
    assert work.id.startswith("unnamed-")


def test_hooks_are_told_all_that_travels_with_a_job() -> None:
    headers = {
        names.NAME: "welcome",
        names.CREATED_AT: 1500,
        names.DUE_AT: 2500,
        names.MAX_ATTEMPTS: 7,
        names.CORRELATION_ID: "c",
    }
    told = sent_fact(Message("1", "full.jobs", BODY, headers, priority=3), "jobs", "memory")
    assert (told.id, told.created_at, told.due_at) == ("1", 1.5, 2.5)
    assert (told.metadata, told.correlation_id) == ({"a": 1}, "c")
    options = told.options or {}
    assert (options[PRIORITY], options[names.MAX_ATTEMPTS]) == (3, 7)
    plain = sent_fact(Message("1", "full.jobs", b"1"), "jobs", "memory")
    assert (plain.due_at, plain.correlation_id) == (None, None)
    assert not plain.options


def test_a_cancellation_is_told_from_other_failures() -> None:
    for reason in ("", "no longer needed"):
        text = canceled_text(reason)
        assert reason in text
        assert was_canceled("failed", text)
        assert not was_canceled("completed", text)
    for error in (None, "", "canceled by the bank"):
        assert not was_canceled("failed", error)


@pytest.mark.parametrize("stored", [None, b"null", b"[1]", b'"a"', b"1"])
def test_metadata_that_are_none_are_empty(stored: bytes | None) -> None:
    assert metadata_from(stored) == {}
    assert metadata_from(b'{"a":1}') == {"a": 1}


def test_a_schedule_is_shown_as_its_provider_has_it() -> None:
    stored = JobSchedule(
        key="k",
        name="n",
        body=BODY,
        every=60.0,
        timezone="Europe/Berlin",
        next_at=5.0,
        missed="all",
    )
    shown = schedule_from(stored)
    assert (shown.key, shown.name, shown.data, shown.metadata) == ("k", "n", [1], {"a": 1})
    assert (shown.cron, shown.every, shown.timezone) == (None, 60.0, "Europe/Berlin")
    assert (shown.missed, shown.paused) == ("all", False)
    assert shown.next_at is not None
    assert shown.next_at.timestamp() == 5.0


# -- new jobs ------------------------------------------------------------------------------------

EVERYTHING = JobCapabilities(
    delays=True,
    priorities=True,
    backoff=True,
    unique_ids=True,
    provider_options=True,
    keep=True,
    unique=True,
    concurrency_per_key=True,
)


class Maker:
    """Makes jobs, and notes what it reports."""

    def __init__(
        self,
        can: JobCapabilities = EVERYTHING,
        make_id: MakeId | None = None,
        provider: str = "sqlite",
        **defaults: Any,
    ) -> None:
        self.clock = ManualClock()
        self.reported: list[tuple[str, object, str]] = []
        self._maker = JobMaker(
            queue="emails",
            full_name="jobs.emails",
            where="[Queue:emails]",
            defaults=defaults,
            make_id=make_id,
            can=can,
            provider=provider,
            report=self._report,
            clock=self.clock,
        )

    def _report(self, option: str, value: object, provider: str) -> None:
        self.reported.append((option, value, provider))

    def make(self, data: Any = None, job_id: str | None = None, **options: Any) -> Any:
        return self._maker.make("welcome", data, job_id, options)


def test_a_job_travels_with_its_options() -> None:
    maker = Maker()
    message, job = maker.make(
        {"to": "ada"},
        "j-1",
        attempts=7,
        backoff=Exponential(2, max_delay=60, jitter=0.5),
        delay=90,
        priority=4,
        concurrency_key="ada",
        correlation_id="c-1",
        unique=Unique("welcome-ada", within=600),
        remove_on_complete=Keep(age=60, count=10),
        remove_on_fail=True,
        metadata={"tenant": "t"},
        provider_options={"lifo": True},
    )
    now = maker.clock.time()
    assert message.headers == {
        names.ID: "j-1",
        names.NAME: "welcome",
        names.MAX_ATTEMPTS: 7,
        names.CREATED_AT: round(now * 1000),
        names.DUE_AT: round((now + 90) * 1000),
        names.BACKOFF: "exponential:2000:60000~0.5",
        names.KEEP_COMPLETED: "age=60,count=10",
        names.KEEP_FAILED: "count=0",
        names.CONCURRENCY_KEY: "ada",
        names.CORRELATION_ID: "c-1",
        names.UNIQUE: "welcome-ada",
        names.UNIQUE_FOR: 600_000,
        names.PROVIDER_OPTIONS: '{"lifo":true}',
    }
    assert (message.id, message.queue, message.delay, message.priority) == (
        *("j-1", "jobs.emails", 90.0, 4),
    )
    assert json.loads(message.body) == {"_jobData": {"to": "ada"}, "_metadata": {"tenant": "t"}}
    assert (job.id, job.name, job.queue, job.data) == ("j-1", "welcome", "emails", {"to": "ada"})
    assert (job.status, job.max_attempts, job.priority) == ("delayed", 7, 4)
    assert job.created_at == maker.clock.now()
    assert job.scheduled_for == maker.clock.now() + timedelta(seconds=90)
    assert job.metadata == {"tenant": "t"}
    assert maker.reported == []


def test_a_job_without_options_says_little() -> None:
    maker = Maker()
    message, job = maker.make()
    assert message.headers == {
        names.ID: message.id,
        names.NAME: "welcome",
        names.MAX_ATTEMPTS: 3,
        names.CREATED_AT: round(maker.clock.time() * 1000),
    }
    assert (message.body, message.delay, message.priority) == (b'{"_jobData":null}', 0.0, None)
    assert (job.status, job.scheduled_for, job.metadata) == ("waiting", None, {})
    assert maker.make(unique="key")[0].headers[names.UNIQUE] == "key"
    assert names.UNIQUE_FOR not in maker.make(unique="key")[0].headers
    again, _ = Maker(attempts=5, priority=2).make(priority=1)
    assert (again.headers[names.MAX_ATTEMPTS], again.priority) == (5, 1), "its own comes first"


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(timedelta(minutes=1), 60.0), (30, 30.0), (None, 0.0), (datetime(2030, 1, 1, tzinfo=UTC), 0)],
)
def test_a_delay_may_be_a_moment(delay: Any, seconds: float) -> None:
    maker = Maker()
    assert maker.make(delay=delay)[0].delay == seconds
    moment = maker.clock.now() + timedelta(seconds=45)
    message, job = maker.make(delay=moment)
    assert (message.delay, job.scheduled_for) == (45.0, moment)
    past, job = maker.make(delay=maker.clock.now() - timedelta(days=1))
    assert (past.delay, job.status) == (0.0, "waiting")
    assert names.DUE_AT not in past.headers
    with pytest.raises(InvalidJobError, match="thirty years"):
        maker.make(delay=moment.replace(year=2100))


def test_ids_are_given_made_or_new_and_sort_by_time() -> None:
    maker = Maker(make_id=lambda name, data: f"{name}-{data}")
    assert maker.make(7)[0].id == "welcome-7"
    assert maker.make(7, "mine")[0].id == "mine"
    first, later = Maker().make()[0].id, new_id(ManualClock().time() + 0.001)
    pattern = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(pattern, first)
    assert first < later
    forgetful = Maker(JobCapabilities())
    forgetful.make(None, "mine")
    forgetful.make()
    assert forgetful.reported == [("job_id", "mine", "sqlite")], "new ids are unique anyway"
    for odd in ("", "  ", 7, "x" * 501, "a\nb"):
        with pytest.raises(InvalidJobError, match="job_id"):
            Maker().make(None, odd)  # type: ignore[arg-type] - users
    assert Maker().make(None, "x" * 500)[0].id == "x" * 500


def test_what_a_provider_cannot_do_is_reported_and_left_out() -> None:
    maker = Maker(JobCapabilities(unique_ids=True))
    message, job = maker.make(
        delay=60,
        priority=2,
        backoff=Fixed(1),
        concurrency_key="k",
        unique="u",
        provider_options={"a": 1},
        remove_on_complete=Keep(count=5),
        remove_on_fail=Keep(count=6),
    )
    assert set(message.headers) == {names.ID, names.NAME, names.MAX_ATTEMPTS, names.CREATED_AT}
    assert (message.delay, message.priority, job.status) == (0.0, None, "waiting")
    assert {name for name, *_ in maker.reported} == {
        *("delay", "priority", "backoff", "concurrency_key", "unique", "provider_options"),
        *("remove_on_complete", "remove_on_fail"),
    }
    assert ("remove_on_complete", Keep(count=5), "sqlite") in maker.reported


def test_what_a_provider_does_anyway_is_not_reported() -> None:
    maker = Maker(JobCapabilities())
    maker.make(remove_on_complete=True, remove_on_fail=False, delay=0, provider_options={})
    assert maker.reported == []
    keeps_none = Maker(JobCapabilities(dead_letters=False))
    keeps_none.make(remove_on_fail=False)
    assert [name for name, *_ in keeps_none.reported] == ["remove_on_fail"]


@pytest.mark.parametrize(
    ("given", "provider", "own"),
    [
        ({"lifo": True}, "sqlite", {"lifo": True}),
        ({"sqlite": {"a": 1}, "redis": {"b": 2}}, "sqlite", {"a": 1}),
        ({"redis": {"b": 2}}, "sqlite", {}),
        ({"redis": {"b": 2}}, "bullmq", {"b": 2}),
        ({"bullmq": {"b": 2}}, "redis", {"b": 2}),
        ({"sqlite": 1}, "sqlite", {"sqlite": 1}),
        ({"sqlite": {"a": 1}, "lifo": True}, "redis", {"sqlite": {"a": 1}, "lifo": True}),
    ],
)
def test_options_for_several_providers_are_taken_by_each(
    given: Any, provider: str, own: dict[str, Any]
) -> None:
    message, _ = Maker(provider=provider).make(provider_options=given)
    assert json.loads(str(message.headers.get(names.PROVIDER_OPTIONS, "{}"))) == own


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"backoff": 5}, "backoff must be Fixed"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"metadata": [1]}, "metadata must be a mapping"),
        ({"provider_options": [1]}, "provider_options must be a mapping"),
        ({"provider_options": {1: 1}}, "names of provider_options must be text"),
        ({"provider_options": {"a": object()}}, "provider_options"),
        ({"concurrency_key": ""}, "concurrency_key must be a string of 1 to 500"),
        ({"concurrency_key": "x" * 501}, "concurrency_key must be a string of 1 to 500"),
        ({"correlation_id": 7}, "correlation_id must be a string"),
        ({"unique": ""}, "key must be a non-empty string"),
        ({"unique": 7}, "key must be a non-empty string"),
        ({"delay": -1}, "delay"),
        ({"delay": 1e9 + 1}, "thirty years"),
        ({"delay": "soon"}, "a datetime with a time zone is a delay, too"),
        ({"delay": datetime(2030, 1, 1)}, "must have a time zone"),  # noqa: DTZ001 - users
        ({"remove_on_fail": "no"}, "remove_on_fail must be"),
        ({"metadata": {1: "a"}}, "keys of metadata must be strings"),
        ({"metadata": {"a": 1, "b": object()}}, r"metadata\['b'\]"),
        ({"attempt": 5}, "unknown option 'attempt'.*did you mean 'attempts'"),
    ],
)
def test_a_wrong_option_is_named(options: Any, said: str) -> None:
    with pytest.raises(InvalidJobError, match=said) as caught:
        Maker().make(**options)
    assert str(caught.value).startswith(("[Queue:emails] add", "Unique: key"))


def test_limits_of_options_and_of_the_provider() -> None:
    Maker().make(delay=1e9)
    Maker().make(concurrency_key="x" * 500, correlation_id="x")
    slow = JobCapabilities(delays=True, max_delay=900.0)
    assert Maker(slow).make(delay=900)[0].delay == 900.0
    with pytest.raises(InvalidJobError, match="delays by at most 900 s, got 901 s"):
        Maker(slow).make(delay=901)
    never = Maker(JobCapabilities(max_delay=900.0))
    assert never.make(delay=901)[0].delay == 0.0, "it cannot delay at all, and says so"
    small = JobCapabilities(max_job_size=16)
    assert len(Maker(small).make(123)[0].body) == 16
    with pytest.raises(InvalidJobError, match="the job has 17 bytes, the provider takes 16"):
        Maker(small).make(1234)


# -- jobs that are stored again ------------------------------------------------------------------


def failed(decision: Any, *, ran: bool = True, bare: bool = False, longest: int = 9999) -> Failure:
    try:
        raise ValueError("x" * 5000)
    except ValueError as error:
        return Failure(error, decision, ran, longest, bare)


@pytest.mark.parametrize(("ran", "attempts"), [(True, 3), (False, 2)])
def test_a_retry_says_when_it_is_due_and_how_often_it_was_tried(ran: bool, attempts: int) -> None:
    headers = {names.ID: "j-1", names.ATTEMPTS: 2, names.NAME: "welcome"}
    properties = Properties(correlation_id="c")
    receipt = Receipt("jobs", 1, priority=4, ordering_key="k")
    work = received(Delivery(BODY, headers, receipt, properties=properties), 9.0)
    message = successor(work, failed(RetryLater(2.5), ran=ran), 100.0)
    assert (message.id, message.queue, message.body) == ("j-1", "jobs", BODY)
    assert (message.delay, message.priority, message.ordering_key) == (2.5, 4, "k")
    assert message.properties is properties
    expected = {names.ATTEMPTS: attempts, names.ERROR: message.headers[names.ERROR]}
    assert message.headers == headers | expected | {names.RETRY_AT: 102_500}
    assert len(str(message.headers[names.ERROR])) == 2000
    short = successor(work, failed(RetryLater(0.0), longest=10), 100.0)
    assert len(str(short.headers[names.ERROR])) == 10


@pytest.mark.parametrize(
    ("ran", "bare", "traced"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_failed_job_says_when_and_where_it_failed(ran: bool, bare: bool, traced: bool) -> None:
    properties = Properties(correlation_id="c")
    delivery = Delivery(BODY, {names.ID: "j-1"}, Receipt("jobs", 1), properties=properties)
    decision = SendToDeadLetters("undeliverable", "no")
    message = successor(received(delivery, 9.0), failed(decision, ran=ran, bare=bare), 100.0)
    assert message.headers[names.FAILED_AT] == 100_000
    assert message.headers[ERROR_TYPE_HEADER] == "ValueError"
    assert (TRACEBACK_HEADER in message.headers) == traced
    assert names.RETRY_AT not in message.headers
    assert message.delay == 0.0
    assert message.properties is (None if bare else properties)


@pytest.mark.parametrize(
    ("headers", "attempt", "due"),
    [
        ({}, 1, 9.0),
        ({names.CREATED_AT: 3000}, 1, 3.0),
        ({names.CREATED_AT: 3000, names.DUE_AT: 5000}, 1, 5.0),
        ({names.CREATED_AT: 3000, names.ATTEMPTS: 1}, 2, 9.0),
        ({names.DUE_AT: 5000, names.ATTEMPTS: 1, names.RETRY_AT: 7000}, 2, 7.0),
        ({names.DUE_AT: 5000, names.RETRY_AT: 7000}, 1, 5.0),
    ],
)
def test_when_an_attempt_could_have_begun(
    headers: dict[str, int], attempt: int, due: float
) -> None:
    work = received(Delivery(BODY, headers, Receipt("jobs", 1)), 9.0)
    assert (work.attempt, work.due_at) == (attempt, due)


def test_a_recorded_job_is_another_job_with_the_same_options() -> None:
    kept = {
        names.BACKOFF: "fixed:1",
        names.CONCURRENCY_KEY: "k",
        names.CORRELATION_ID: "c",
        names.KEEP_COMPLETED: "all",
        names.KEEP_FAILED: "count=1",
        names.PROVIDER_OPTIONS: "{}",
    }
    gone = {names.UNIQUE: "u", names.PARENT: "p", names.CHILDREN: "2", names.ATTEMPTS: "3"}
    options = {**kept, **gone, names.MAX_ATTEMPTS: "5", PRIORITY: "7"}
    stored = StoredJob(id="j-2", name="welcome", data=b"[1]", metadata={"a": 1}, options=options)
    message = stored_message("jobs", stored, 2.0)
    assert (message.id, message.queue, message.priority) == ("j-2", "jobs", 7)
    assert message.body == BODY
    assert message.headers == {
        names.ID: "j-2",
        names.NAME: "welcome",
        names.MAX_ATTEMPTS: 5,
        names.CREATED_AT: 2000,
        **kept,
    }
    bare = StoredJob(id="j-3", name="n", data=b"1", metadata={}, options={names.MAX_ATTEMPTS: "0"})
    message = stored_message("jobs", bare, 2.0)
    assert (message.body, message.priority) == (b'{"_jobData":1}', None)
    assert message.headers[names.MAX_ATTEMPTS] == 1


# -- what listeners are told ---------------------------------------------------------------------


class Listening:
    """A hook for listeners, and what it told them."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.heard = True
        self.hook = JobEvents(
            queue="emails",
            worker_id="w-1",
            emit=lambda name, event: self.told.append((name, event)),
            is_heard=lambda: self.heard,
            max_attempts=lambda headers: int(headers.get(names.MAX_ATTEMPTS, 3)),
        )

    def ended(self, **fields: Any) -> list[tuple[str, Any]]:
        self.told.clear()
        delivery = Delivery(b"1", {names.MAX_ATTEMPTS: 9}, Receipt("q", 1))
        of = of_job(delivery=delivery, attempt=2, metadata={"a": 1})
        self.hook.on_attempted([attempted(arrived(**of), **fields)])
        return list(self.told)


ABOUT: dict[str, Any] = {
    "job_id": "m-1",
    "name": "welcome",
    "queue": "emails",
    "metadata": {"a": 1},
}


def test_listeners_are_told_of_a_success() -> None:
    ((name, event),) = Listening().ended(result=7)
    assert name == "completed"
    assert event == JobCompleted(**ABOUT, attempts=2, status="completed", duration=0.002, result=7)


@pytest.mark.parametrize(("delay", "status"), [(5.0, "delayed"), (0.0, "waiting")])
def test_listeners_are_told_of_a_retry_after_its_failure(delay: float, status: Any) -> None:
    error = ValueError("no")
    told = Listening().ended(error=error, decision=RetryLater(delay), outcome="retry")
    about: dict[str, Any] = {**ABOUT, "attempts": 2, "status": status}
    failed = JobFailed(
        **about,
        error=error,
        error_type="ValueError",
        duration=0.002,
        will_retry=True,
        retry_delay=delay,
    )
    retrying = JobRetrying(**about, max_attempts=9, retry_delay=delay)
    assert told == [("failed", failed), ("retrying", retrying)]


@pytest.mark.parametrize(
    ("error", "ran", "permanent"),
    [
        (ValueError("no"), True, False),
        (DontRetry("no"), True, True),
        (ValueError("x"), False, True),
    ],
)
def test_listeners_are_told_of_the_last_failure(
    error: Exception, ran: bool, permanent: bool
) -> None:
    decision = SendToDeadLetters("undeliverable", "no")
    ((name, event),) = Listening().ended(error=error, decision=decision, ran=ran)
    assert (name, event.status, event.attempts) == ("failed", "failed", 2 if ran else 1)
    assert (event.will_retry, event.retry_delay, event.permanent) == (False, None, permanent)


def test_listeners_are_told_of_what_runs_unless_there_are_none() -> None:
    listening = Listening()
    work = received(Delivery(BODY, {names.ID: "m-1", names.NAME: "welcome"}, Receipt("q", 1, 3)), 9)
    about: dict[str, Any] = {**ABOUT, "attempts": 2, "status": "active"}
    listening.hook.active(work)
    listening.hook.progress(work, 50)
    assert listening.told == [
        ("active", JobActive(**about, worker_id="w-1")),
        ("progress", JobProgress(**about, progress=50)),
    ]
    listening.heard = False
    nothing: Sequence[Any] = listening.ended()
    listening.hook.active(work)
    listening.hook.progress(work, 60)
    assert (list(nothing), listening.told) == ([], [])
