"""Headers of others and of the broker: what is kept, what is counted, what is left behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pika
import pytest

from matador.transports.rabbitmq import wire
from matador.transports.rabbitmq.wire import IncomingProperties


def properties(**headers: Any) -> bytes:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    made = pika.BasicProperties(headers=given, message_id="m", priority=3, type="T")
    return b"".join(cast("list[bytes]", cast("Any", made).encode()))


HOPS = [(2, "5m"), (1, "20s")]
DEATHS = [
    {"queue": "shop.events.retry", "reason": "expired", "count": 2, "exchange": "shop.exchange"},
    {"queue": "matador.delay.512", "reason": "expired", "count": 1, "exchange": "x"},
]


@pytest.mark.parametrize(
    ("headers", "redelivered", "before"),
    [
        ({}, False, 0),
        ({}, True, 1),
        ({"x_delivery_count": 0}, False, 0),
        ({"x_delivery_count": 4}, True, 4),
        ({"x_delivery_count": 1, "x_matador_deliveries": 2}, True, 3),
        ({"x_matador_deliveries": 2}, False, 2),
        ({"x_matador_attempts": 9}, False, 0),
        # Anybody may write these: nothing below zero, nothing beyond all measure.
        ({"x_matador_deliveries": -5}, False, 0),
        ({"x_matador_deliveries": -5, "x_delivery_count": 3}, True, 3),
        ({"x_delivery_count": -1}, True, 0),
        ({"x_matador_deliveries": (1 << 63) - 1, "x_delivery_count": (1 << 63) - 1}, True, 10**6),
        ({"x_matador_deliveries": "many", "x_delivery_count": [1]}, True, 1),
    ],
)
def test_deliveries_are_counted_as_the_broker_counts_them(
    headers: dict[str, Any], redelivered: bool, before: int
) -> None:
    assert IncomingProperties(properties(**headers), redelivered).deliveries == before


def test_rounds_that_the_broker_counted_are_attempts_unless_the_sender_counts() -> None:
    marks = {"matador_delay_512": 1}
    incoming = IncomingProperties(properties(x_death=DEATHS, text="kept", **marks), False)
    assert incoming.headers == {"text": "kept", "x-matador-attempts": 3}
    incoming = IncomingProperties(properties(x_death=DEATHS, x_matador_attempts=7, **marks), False)
    assert incoming.headers == {"x-matador-attempts": 7}


def test_hops_of_a_delay_are_no_rounds() -> None:
    deaths = [{"queue": f"matador.delay.hops.{left}.{name}", "count": 1} for left, name in HOPS]
    marks = {f"matador_delay_{left}": name for left, name in HOPS}
    assert IncomingProperties(properties(x_death=deaths, text="kept", **marks), False).headers == {
        "text": "kept"
    }


@pytest.mark.parametrize("count", [-3, (1 << 63) - 1, "x"])
def test_counts_of_rounds_that_cannot_be_are_bounded(count: object) -> None:
    deaths = [{"queue": "shop.events.retry", "count": count}]
    attempts = IncomingProperties(properties(x_death=deaths), False).headers.get(
        "x-matador-attempts", 1
    )
    assert 1 <= int(attempts) <= 1_000_001


def test_a_copy_keeps_everything_but_the_traces_of_its_way() -> None:
    given = properties(
        x_death=DEATHS,
        x_delivery_count=3,
        x_first_death_queue="shop.events.retry",
        matador_delay_512=1,
        x_matador_ordering_key="k",
        nested={"list": [1, "two"]},
        text="kept",
    )
    copied = pika.BasicProperties()
    cast("Any", copied).decode(wire.copy_of(given, 3, 131072, "guest"))
    assert (copied.message_id, copied.priority, copied.type) == ("m", 3, "T")
    assert copied.headers == {
        "nested": {"list": [1, "two"]},
        "text": "kept",
        "x-matador-attempts": 3,
        "x-matador-deliveries": 3,
        "x-matador-ordering-key": "k",
    }


def test_without_pika_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['pika'] = None\n"
        "from matador.transports import transport_from_url\n"
        "try: transport_from_url('amqp://localhost')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == (
        "MissingExtraError RabbitMQ needs an extra: pip install 'matador-events[rabbitmq]'"
    )


def test_what_waits_in_a_hop_ends_its_wait_by_itself() -> None:
    """The queue may not know its own time to live yet."""
    given = pika.BasicProperties(headers={"mine": "kept"}, message_id="m", timestamp=5)
    read = pika.BasicProperties()
    read.decode(wire.expiring(b"".join(given.encode()), 1500))
    assert (read.expiration, read.headers, read.message_id) == ("1500", {"mine": "kept"}, "m")
    given.expiration = "7"
    read.decode(wire.expiring(b"".join(given.encode()), 1500))
    assert read.expiration == "7", "the sender's own"
