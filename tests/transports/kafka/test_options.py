"""Addresses and options of Kafka: what is read, what is refused, and what nobody gets to see."""

from __future__ import annotations

import pytest

from matador.errors import ConfigurationError
from matador.transports import transport_from_url
from matador.transports.kafka import KafkaTransport
from matador.transports.kafka.options import read_kafka_address


def test_several_hosts_and_options() -> None:
    address = read_kafka_address("kafka://a:1,b/?replication=3&create=no", {"partitions": 8})
    assert address.hosts == (("a", 1), ("b", 9092))
    assert (address.replication, address.create, address.partitions) == (3, False, 8)
    assert address.client_settings()["bootstrap.servers"] == "a:1,b:9092"


def test_credentials_and_tls_are_passed_on_and_shown_nowhere() -> None:
    url = "kafkas://ada:s%40cret@host/?sasl_mechanism=SCRAM-SHA-512&tls_verify=false"
    address = read_kafka_address(url, {"config": {"ssl.key.password": "s@cret"}})
    settings = address.client_settings()
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("ada", "s@cret")
    assert settings["enable.ssl.certificate.verification"] is False
    assert settings["ssl.key.password"] == "s@cret"
    transport = KafkaTransport(url)
    for shown in (repr(address), repr(transport), transport.name, address.where):
        assert "s@cret" not in shown
        assert "s%40cret" not in shown


def test_the_url_finds_the_transport() -> None:
    transport = transport_from_url("kafka://localhost?name=events")
    assert isinstance(transport, KafkaTransport)
    assert transport.name == "events"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("amqp://host", {}, "write kafka://"),
        ("kafka://host/path", {}, "has a path"),
        ("kafka://host?partition=3", {}, "partitions"),
        ("kafka://host?session=soon", {}, "number of seconds"),
        ("kafka://host?sasl_mechanism=NONE", {}, "SCRAM-SHA-256"),
        ("kafka://:secret@host", {}, "without a user"),
        ("kafka://host", {"config": {"acks": "0"}}, "'acks'"),
        ("kafka://host", {"config": {"group.id": "x"}}, "'group.id'"),
        ("kafka://host", {"config": 7}, "mapping"),
        ("kafka://host", {"linger": 5}, "at most 1 s"),
        ("kafka://host", {"compression": "zip"}, "gzip"),
        ("kafkas://host", {"tls_server_name": "x"}, "not supported"),
        ("kafka://host:99999", {}, "not a port"),
        ("kafka://host?start=ende", {}, "beginning or end"),
    ],
)
def test_what_cannot_be_is_refused(url: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_kafka_address(url, options)
    assert "secret" not in str(caught.value)
