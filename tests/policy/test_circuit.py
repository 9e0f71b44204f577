"""The circuit breaker, with moved time."""

from __future__ import annotations

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
