"""Addresses of SQS."""

from __future__ import annotations

from typing import Any

import pytest

from matador.errors import ConfigurationError
from matador.transports import transport_from_url
from matador.transports.sqs import SqsTransport
from matador.transports.sqs.options import SqsAddress, read_sqs_address


def address(url: str, **options: Any) -> SqsAddress:
    return read_sqs_address(url, options)


def test_an_address_has_a_region_and_options() -> None:
    found = address("sqs://eu-west-1?endpoint=http://localhost:9324&fifo=true&lease=60&wait=10")
    assert (found.region, found.endpoint) == ("eu-west-1", "http://localhost:9324")
    assert (found.fifo, found.lease, found.wait) == (True, 60.0, 10.0)


def test_without_a_region_aws_decides() -> None:
    assert address("sqs://").region is None
    assert address("sqs://", region="us-east-1").region == "us-east-1"


def test_keywords_win() -> None:
    assert address("sqs://eu-west-1?lease=60", lease=90).lease == 90.0


@pytest.mark.parametrize(("given", "used"), [(0, 0), (0.5, 1), (7, 7), (20, 20), (300, 20)])
def test_the_wait_is_whole_seconds_and_at_most_twenty(given: float, used: int) -> None:
    assert address("sqs://", wait=given).wait == used


def test_the_lease_is_whole_seconds() -> None:
    assert address("sqs://", lease=1.2).lease == 2.0


@pytest.mark.parametrize(
    "url",
    [
        "sqs://AKIA:se-cret@eu-west-1",
        "sqs://eu-west-1?aws_secret_access_key=se-cret",
        "sqs://eu-west-1?access_key=AKIA&secret=se-cret",
        "sqs://eu-west-1?session_token=se-cret",
        "sqs://eu-west-1?endpoint=http://me:se-cret%40localhost",
    ],
)
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        address(url)
    assert "se-cret" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqs://eu-west-1/queue", "path"),
        ("sqs://Nowhere!", "invalid region"),
        ("sqs://eu-west-1?lease=0", "lease"),
        ("sqs://eu-west-1?lease=50000", "12 hours"),
        ("sqs://eu-west-1?max_receives=5000", "at most 1000"),
        ("sqs://eu-west-1?endpoint=localhost", "http://localhost:9324"),
        ("sqs://eu-west-1?fif=true", "fifo"),
        ("amqp://eu-west-1", "write sqs://"),
    ],
)
def test_errors_say_what_to_write(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        address(url)


def test_it_is_found_by_its_url() -> None:
    transport = transport_from_url("sqs://eu-west-1?fifo=true", lease=5)
    assert isinstance(transport, SqsTransport)
    assert transport.capabilities.ordering == "partition"
    assert repr(transport) == "SqsTransport('SQS in eu-west-1', disconnected)"
