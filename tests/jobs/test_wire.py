"""What travels with a job: attempts, options and the reason of a cancellation."""

from __future__ import annotations

import pytest

from matador.jobs.job import metadata_from
from matador.jobs.schedules import schedule_from
from matador.jobs.wire import PRIORITY, canceled_text, received, sent_fact, was_canceled
from matador.model import job as names
from matador.model.job import JobSchedule
from matador.model.message import Delivery, Message, Receipt

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
