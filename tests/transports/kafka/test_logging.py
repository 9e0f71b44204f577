"""What the client library logs."""

from __future__ import annotations

import logging

import pytest
from tests.support.ports import free_ports

from matador.errors import ConnectionFailedError
from matador.transports.kafka import KafkaTransport
from matador.transports.kafka.options import RepetitionFilter


def record_of(text: str) -> logging.LogRecord:
    return logging.LogRecord("matador.transports.kafka", logging.ERROR, "", 0, text, (), None)


def test_a_line_is_repeated_after_a_while_with_how_often_it_was_left_out() -> None:
    moment = 0.0
    repetitions = RepetitionFilter(lambda: moment)
    assert repetitions.filter(record_of("broker 1: refused (after 0ms in state CONNECT)"))
    for took in range(1200):
        assert not repetitions.filter(record_of(f"broker 1: refused (after {took}ms)"))
    assert repetitions.filter(record_of("broker 2: refused (after 0ms)"))
    moment = 30.0
    later = record_of("broker 1: refused (after 7ms)")
    assert repetitions.filter(later)
    said = "broker 1: refused (after 7ms) (1,200 more like this were left out)"
    assert later.getMessage() == said
    moment = 60.0
    last = record_of("broker 1: refused (after 8ms)")
    assert repetitions.filter(last)
    assert last.getMessage() == "broker 1: refused (after 8ms)"


async def test_a_broker_that_is_away_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    port = free_ports(1)
    with pytest.raises(ConnectionFailedError):
        await KafkaTransport(f"kafka://127.0.0.1:{port}").connect()
    lines = [one for one in caplog.messages if f":{port} failed: Connection refused" in one]
    assert 1 <= len(lines) <= 2
