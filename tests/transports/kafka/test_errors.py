"""Every error of the client library becomes a named one: transient, or for good."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from matador.errors import (
    ConnectionFailedError,
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    QueueNotFoundError,
    SendFailedError,
    SendRefusedError,
    SendTimeoutError,
    StorageFullError,
    TransportError,
    UnstorableError,
    UnsupportedError,
)
from matador.transports.kafka.errors import translate

_CODES = {
    name: code
    for name in dir(KafkaError)
    if name.lstrip("_").isupper() and isinstance(code := getattr(KafkaError, name), int)
}


@pytest.mark.parametrize("name", _CODES)
def test_every_code_has_a_named_error_with_its_cause(name: str) -> None:
    error = KafkaError(_CODES[name], "it happened")
    for opening in (False, True):
        found = translate(error, "Kafka at host", queue="shop.events", opening=opening)
        assert isinstance(found, MatadorError)
        assert type(found) is not MatadorError
        assert isinstance(found.__cause__, KafkaException)
        if opening:
            assert isinstance(found, ConnectionFailedError)
        if not isinstance(found, MessageTooLargeError):
            assert "it happened" in str(found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("UNKNOWN_TOPIC_OR_PART", QueueNotFoundError),
        ("_UNKNOWN_TOPIC", QueueNotFoundError),
        ("ILLEGAL_GENERATION", LeaseLostError),
        ("UNKNOWN_MEMBER_ID", LeaseLostError),
        ("MSG_SIZE_TOO_LARGE", MessageTooLargeError),
        ("INVALID_RECORD", UnstorableError),
        ("_MSG_TIMED_OUT", SendTimeoutError),
        ("NOT_ENOUGH_REPLICAS", SendRefusedError),
        ("_ALL_BROKERS_DOWN", SendFailedError),
        ("_TRANSPORT", SendFailedError),
        ("NOT_LEADER_FOR_PARTITION", SendFailedError),
        ("COORDINATOR_LOAD_IN_PROGRESS", SendFailedError),
        ("KAFKA_STORAGE_ERROR", StorageFullError),
        ("TOPIC_AUTHORIZATION_FAILED", TransportError),
        ("SASL_AUTHENTICATION_FAILED", TransportError),
        ("UNSUPPORTED_VERSION", UnsupportedError),
    ],
)
def test_what_may_succeed_later_is_told_from_what_will_not(
    name: str, expected: type[MatadorError]
) -> None:
    assert isinstance(translate(KafkaException(KafkaError(_CODES[name])), "Kafka"), expected)


def test_other_exceptions() -> None:
    assert isinstance(translate(BufferError("full"), "Kafka"), SendRefusedError)
    assert isinstance(translate(ValueError("odd"), "Kafka"), UnstorableError)
    assert isinstance(translate(RuntimeError("closed"), "Kafka"), TransportError)
    known = QueueNotFoundError("none")
    assert translate(known, "Kafka") is known
