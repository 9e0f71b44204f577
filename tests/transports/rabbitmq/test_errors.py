"""Every error of pika has one of ours, with a cause and a remedy."""

from __future__ import annotations

import inspect
from typing import Any

import pika.adapters.utils.connection_workflow as workflow
import pytest
from pika import exceptions

from matador.errors import (
    ConnectionFailedError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    SendRefusedError,
    TransportError,
    UnsupportedError,
)
from matador.transports.rabbitmq.errors import connection_failed, translate

ALL = [
    kind
    for kind in vars(exceptions).values()
    if inspect.isclass(kind) and issubclass(kind, Exception)
]

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ConnectionClosed": (320, "going down"),
    "ConnectionClosedByBroker": (320, "going down"),
    "ConnectionClosedByClient": (200, "bye"),
    "ChannelClosed": (404, "no queue"),
    "ChannelClosedByBroker": (404, "no queue"),
    "ChannelClosedByClient": (0, "bye"),
    "UnroutableError": ([],),
    "NackError": ([],),
}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_none_is_missed(kind: type[Exception]) -> None:
    error = kind(*ARGUMENTS.get(kind.__name__, ("what it says",)))
    ours = translate(error, "doing something")
    assert isinstance(ours, TransportError)
    assert ours.__cause__ is error
    assert str(ours).startswith("doing something: ")
    assert ours.description != MatadorError.description


def test_there_are_errors_to_look_at() -> None:
    assert len(ALL) > 25


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (404, "NOT_FOUND - no queue 'q'", QueueNotFoundError),
        (403, "ACCESS_REFUSED - access to queue 'q' refused", UnsupportedError),
        (405, "RESOURCE_LOCKED - exclusive", UnsupportedError),
        (406, "PRECONDITION_FAILED - delivery acknowledgement timed out", NotConnectedError),
        (406, "PRECONDITION_FAILED - unknown delivery tag 5", TransportError),
    ],
)
def test_a_reply_code_has_its_own_error(code: int, text: str, expected: type[Exception]) -> None:
    ours = translate(exceptions.ChannelClosedByBroker(code, text), "x")
    assert type(ours) is expected
    assert text in str(ours)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (exceptions.UnroutableError, QueueNotFoundError),
        (exceptions.NackError, SendRefusedError),
        (exceptions.StreamLostError, NotConnectedError),
        (exceptions.AMQPHeartbeatTimeout, NotConnectedError),
        (exceptions.ProbableAuthenticationError, ConnectionFailedError),
    ],
)
def test_the_common_ones_say_what_they_are(
    kind: type[Exception], expected: type[Exception]
) -> None:
    assert type(translate(kind("x"), "y")) is expected


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (exceptions.ProbableAuthenticationError("x"), "user and password"),
        (exceptions.ProbableAccessDeniedError("x"), "virtual host"),
        (exceptions.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost x not found"), "virtual"),
        (exceptions.IncompatibleProtocolError("x"), "amqps://"),
        (ConnectionRefusedError(111, "refused"), "that RabbitMQ is running"),
    ],
)
def test_a_failed_connection_says_what_to_check(error: Exception, remedy: str) -> None:
    wrapped = workflow.AMQPConnectionWorkflowFailed(
        [workflow.AMQPConnectorSocketConnectError(error)]
    )
    ours = connection_failed(wrapped, "host:5672")
    assert remedy in str(ours)
    assert "host:5672" in str(ours)
    assert ours.__cause__ is wrapped
