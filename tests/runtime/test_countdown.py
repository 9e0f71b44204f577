"""A time limit that stands still."""

from __future__ import annotations

from matador.runtime.countdown import Countdown
from matador.testing import ManualClock


def counted(left: float = 10.0) -> tuple[Countdown, ManualClock, list[float]]:
    clock, ended = ManualClock(), list[float]()
    return Countdown(left, clock, lambda: ended.append(clock.monotonic())), clock, ended


def test_a_countdown_begins_with_its_first_resume() -> None:
    countdown, clock, ended = counted()
    clock.advance(100)
    assert ended == []
    countdown.resume()
    clock.advance(9.5)
    assert ended == []
    clock.advance(0.5)
    assert ended == [110.0]
    clock.advance(100)
    assert ended == [110.0], "once"


def test_only_the_time_between_resume_and_pause_counts() -> None:
    countdown, clock, ended = counted()
    clock.advance(3)
    countdown.resume()
    clock.advance(4)
    countdown.pause()
    clock.advance(100)
    countdown.resume()
    clock.advance(5)
    countdown.pause()
    countdown.resume()
    clock.advance(0.5)
    assert ended == []
    clock.advance(0.5)
    assert ended == [3 + 4 + 100 + 5 + 1.0]


def test_it_goes_on_after_as_many_calls_of_resume_as_of_pause() -> None:
    countdown, clock, ended = counted()
    countdown.resume()
    clock.advance(4)
    countdown.pause()
    clock.advance(1)
    countdown.pause()
    countdown.resume()
    clock.advance(100)
    assert ended == []
    countdown.resume()
    clock.advance(5.5)
    assert ended == []
    clock.advance(0.5)
    assert ended == [111.0]
