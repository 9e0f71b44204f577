"""How processes that end are started again: not at once for ever, and not without saying so."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence

import pytest

from matador.cli import supervisor
from matador.cli.supervisor import Restarts, supervise

DIES = [sys.executable, "-c", "raise SystemExit(3)"]


def _pauses(ends: Sequence[tuple[float, int]]) -> list[float | None]:
    restarts = Restarts()
    return [restarts.pause(lived, code) for lived, code in ends]


def test_one_that_dies_at_its_start_is_given_up() -> None:
    assert _pauses([(0.3, 1)] * 5) == [0.25, 0.5, 1.0, 2.0, None]
    assert _pauses([(4.9, -signal.SIGSEGV)] * 5)[-1] is None


def test_one_that_is_killed_by_others_is_started_again_later_and_later() -> None:
    pauses = _pauses([(0.3, -signal.SIGKILL)] * 12)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0]


def test_one_that_dies_soon_after_its_start_is_not_restarted_at_full_speed() -> None:
    # The time it takes to find out that a server is not there, say.
    assert _pauses([(6.0, 1)] * 12)[-1] == 30.0


def test_one_that_ran_for_long_is_replaced_at_once() -> None:
    assert _pauses([(6.0, 1)] * 4 + [(60.0, 1)])[-1] == 0.25


def test_good_starts_are_forgotten_bad_ones() -> None:
    assert None not in _pauses(([(0.1, 1)] * 4 + [(5.0, 1)]) * 3)


def test_it_says_how_each_ended_and_when_the_next_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
    with caplog.at_level(logging.INFO, "matador.supervisor"):
        assert not supervise(DIES, 1, prefixed=True)
    assert caplog.text.count("process 1 is running") == 5
    assert caplog.text.count("exited with code 3; restarting it in") == 4
    assert "process 1 died 5 times at startup; giving up" in caplog.text


def test_a_process_that_cannot_be_started_counts_as_one_that_died(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
    assert not supervise(["/nowhere/python"], 2, prefixed=True)
    assert caplog.text.count("could not be started") >= 5
    assert "giving up" in caplog.text


def test_any_signal_has_a_name() -> None:
    assert supervisor._how_it_ended(-signal.SIGKILL) == "was killed by SIGKILL"
    assert supervisor._how_it_ended(-40) == "was killed by signal 40"
