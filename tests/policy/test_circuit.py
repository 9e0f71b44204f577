"""The circuit breaker, with moved time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from matador.errors import ConfigurationError
from matador.policy.circuit import Circuit, CircuitBreaker

OPTIONS = CircuitBreaker(threshold=3, recovery_time=60, successes=2)


def failed(circuit: Circuit, times: int, now: float = 0.0) -> Circuit:
    for _ in range(times):
        circuit = circuit.failed(now)
    return circuit


def test_it_opens_at_the_threshold_and_a_success_resets_the_count() -> None:
    circuit = failed(Circuit(OPTIONS), 2)
    assert (circuit.state, circuit.room) == ("closed", None)
    circuit = failed(circuit.succeeded_once(), 2)
    assert circuit.state == "closed"
    circuit = circuit.failed(5.0)
    assert (circuit.state, circuit.room, circuit.opened_at) == ("open", 0, 5.0)


def test_it_is_half_open_after_the_recovery_time_or_with_a_connection() -> None:
    circuit = failed(Circuit(OPTIONS), 3, now=10.0)
    assert circuit.at(69.9).state == "open"
    assert circuit.at(70.0).state == "half-open"
    assert circuit.connected().state == "half-open"
    assert Circuit(OPTIONS).connected().state == "closed"


def test_failures_while_it_is_open_do_not_keep_it_open_for_longer() -> None:
    circuit = failed(Circuit(OPTIONS), 3, now=0.0).failed(59.0)
    assert circuit.at(60.0).state == "half-open"


def test_half_open_lets_a_few_through_and_closes_after_enough_successes() -> None:
    circuit = failed(Circuit(OPTIONS), 3).at(60.0)
    assert circuit.room == 2
    circuit = circuit.begun(2)
    assert circuit.room == 0
    circuit = circuit.succeeded_once()
    assert (circuit.state, circuit.room) == ("half-open", 0)
    circuit = circuit.succeeded_once()
    assert (circuit.state, circuit.failures, circuit.room) == ("closed", 0, None)


def test_any_failure_opens_a_half_open_one_again() -> None:
    circuit = failed(Circuit(OPTIONS), 3).at(60.0).begun().failed(61.0)
    assert (circuit.state, circuit.at(120.0).state) == ("open", "open")
    assert circuit.at(121.0).state == "half-open"


@pytest.mark.parametrize("given", [{"threshold": 0}, {"recovery_time": -1}, {"successes": 0}])
def test_wrong_options(given: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        CircuitBreaker(**given)


def test_half_open_counts_what_succeeded_before_more_began() -> None:
    circuit = failed(Circuit(OPTIONS), 3).at(60.0).begun().succeeded_once()
    assert circuit.room == 1
    circuit = circuit.begun()
    assert circuit.room == 0
    assert circuit.succeeded_once().state == "closed"


def test_a_send_that_says_nothing_leaves_its_room_to_another() -> None:
    circuit = failed(Circuit(OPTIONS), 3).at(60.0).begun().succeeded_once().begun()
    circuit = circuit.undecided()
    assert (circuit.state, circuit.room, circuit.undecided().room) == ("half-open", 1, 1)
    assert circuit.begun().succeeded_once().state == "closed"


def test_a_success_that_began_before_the_circuit_opened_reserves_nothing() -> None:
    three = CircuitBreaker(threshold=3, recovery_time=60, successes=3)
    circuit = failed(Circuit(three), 3).at(60.0).succeeded_once()
    assert (circuit.trying, circuit.room) == (0, 2)


def test_a_late_answer_changes_neither_an_open_circuit_nor_a_closed_one() -> None:
    opened = failed(Circuit(OPTIONS), 3)
    assert opened.succeeded_once() is opened
    assert opened.undecided() is opened.begun() is opened
    closed = Circuit(OPTIONS)
    assert closed.undecided() is closed.begun() is closed.succeeded_once() is closed


def test_the_recovery_time_may_be_a_duration() -> None:
    assert CircuitBreaker(recovery_time=timedelta(minutes=2)).recovery_time == 120.0
