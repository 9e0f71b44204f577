"""When recurring jobs are due: intervals, cron expressions, daylight saving, missed times."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from matador.errors import ConfigurationError
from matador.model.job import JobSchedule, Missed
from matador.policy.recurrence import (
    MOST_MISSED,
    check_recurrence,
    cron_expression,
    due_times,
    first_time,
    next_time,
)

BERLIN = ZoneInfo("Europe/Berlin")


def at(*parts: int, fold: int = 0) -> float:
    year, month, day, hour, minute = parts
    return datetime(year, month, day, hour, minute, tzinfo=BERLIN, fold=fold).timestamp()


def cron(expression: str, next_at: float = 0.0, missed: Missed = "one") -> JobSchedule:
    return JobSchedule(
        key="k", name="n", cron=expression, timezone="Europe/Berlin", next_at=next_at, missed=missed
    )


def every(seconds: float, next_at: float = 0.0, missed: Missed = "one") -> JobSchedule:
    return JobSchedule(key="k", name="n", every=seconds, next_at=next_at, missed=missed)


def test_an_interval_is_counted_from_its_start() -> None:
    assert first_time(every(10), now=103.0) == 103.0
    assert next_time(every(10, next_at=103.0), after=50.0) == 103.0
    assert next_time(every(10, next_at=103.0), after=103.0) == 113.0
    assert next_time(every(10, next_at=103.0), after=130.0) == 133.0


def test_a_cron_expression_is_meant_in_its_time_zone() -> None:
    schedule = cron("0 7 * * mon-fri")
    friday = at(2026, 11, 13, 8, 0)
    assert next_time(schedule, friday) == at(2026, 11, 16, 7, 0)
    assert first_time(schedule, friday) == at(2026, 11, 16, 7, 0)


def test_a_time_that_does_not_exist_comes_when_the_clocks_have_moved() -> None:
    schedule = cron("30 2 * * *")
    times = [at(2026, 3, 28, 2, 30)]
    for _ in range(2):
        times.append(next_time(schedule, times[-1]))
    assert times[1:] == [at(2026, 3, 29, 3, 0), at(2026, 3, 30, 2, 30)]


def test_a_time_that_exists_twice_comes_once() -> None:
    schedule = cron("30 2 * * *")
    first = next_time(schedule, at(2026, 10, 24, 12, 0))
    assert first == at(2026, 10, 25, 2, 30)
    assert next_time(schedule, first) == at(2026, 10, 26, 2, 30)


def test_every_half_hour_goes_on_through_both_hours() -> None:
    schedule = cron("*/30 * * * *")
    time, times = at(2026, 10, 25, 1, 45), list[float]()
    for _ in range(5):
        time = next_time(schedule, time)
        times.append(time)
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [1800] * 4


def test_what_is_not_due_is_not_fired() -> None:
    assert due_times(every(10, next_at=100.0), now=99.9) == ([], 100.0)


@pytest.mark.parametrize(
    ("missed", "times"),
    [("one", [130.0]), ("all", [100.0, 110.0, 120.0, 130.0]), ("skip", [130.0])],
)
def test_missed_times_of_an_interval(missed: Missed, times: list[float]) -> None:
    assert due_times(every(10, next_at=100.0, missed=missed), now=134.0) == (times, 140.0)


def test_missed_times_of_a_cron_expression() -> None:
    begin, now = at(2026, 11, 16, 7, 0), at(2026, 11, 19, 12, 0)
    days = [at(2026, 11, day, 7, 0) for day in (16, 17, 18, 19)]
    following = at(2026, 11, 20, 7, 0)
    assert due_times(cron("0 7 * * *", begin, "one"), now) == (days[-1:], following)
    assert due_times(cron("0 7 * * *", begin, "all"), now) == (days, following)
    assert due_times(cron("0 7 * * *", begin, "skip"), now) == ([], following)
    assert due_times(cron("0 7 * * *", begin, "skip"), begin + 5) == (
        [begin],
        at(2026, 11, 17, 7, 0),
    )


def test_no_more_than_so_many_missed_times_are_made_up_for() -> None:
    times, following = due_times(every(1, next_at=0.0, missed="all"), now=1_000_000.5)
    assert len(times) == MOST_MISSED
    assert (times[-1], following) == (1_000_000.0, 1_000_001.0)
    begin = at(2020, 1, 1, 0, 0)
    times, _ = due_times(cron("* * * * *", begin, "all"), at(2026, 1, 1, 0, 0))
    assert len(times) == MOST_MISSED
    assert times[-1] == at(2026, 1, 1, 0, 0)


def test_wrong_schedules_are_named() -> None:
    for given, text in (
        (("0 7 * * *", 5.0, "UTC"), "either cron= or every="),
        (("0 0 31 2 *", None, "UTC"), "not a cron expression"),
        ((None, 5.0, "nowhere"), "no time zone 'nowhere'"),
        ((None, 0.0, "UTC"), "every must be at least"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            check_recurrence(*given, "here", 0.0)


@pytest.mark.parametrize(
    ("given", "expression"),
    [("@daily", "0 0 * * *"), (" @Daily ", "0 0 * * *"), ("5 4 * * *", "5 4 * * *")],
)
def test_names_stand_for_expressions(given: str, expression: str) -> None:
    assert cron_expression(given, "job") == expression


def test_an_unknown_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"job: cron='@dayly' is not one of .*@daily"):
        cron_expression("@dayly", "job")


def test_the_shortest_interval_is_allowed_and_a_shorter_one_is_not() -> None:
    check_recurrence(None, 0.001, "UTC", "job", now=0.0)
    with pytest.raises(ConfigurationError, match="every"):
        check_recurrence(None, 0.0009, "UTC", "job", now=0.0)
