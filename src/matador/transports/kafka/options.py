"""Kafka addresses, their options, and the settings of the client library that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

from matador.errors import ConfigurationError
from matador.model.options import Seconds
from matador.transports.kafka.repetitions import LOG
from matador.transports.kit.options import (
    ReconnectOptions,
    Scheme,
    ServerAddress,
    choice,
    duration,
    flag,
    read_address,
    text,
    whole,
)

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Start: TypeAlias = Literal["beginning", "end"]
Settings: TypeAlias = dict[str, Any]
"""Settings of librdkafka by their names."""

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_WEEK = 7 * 86_400.0
# What the transport stands on: a setting of the user's own here would lose or repeat messages.
_OURS = frozenset(
    (
        *("bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store"),
        *("auto.offset.reset", "partition.assignment.strategy", "enable.idempotence", "acks"),
        *("transactional.id", "isolation.level", "error_cb", "on_commit", "logger", "log_cb"),
    )
)


class KafkaOptions(ReconnectOptions, total=False):
    """The options as keywords; all but ``config`` can be given in the address, too."""

    name: str
    group: str | None
    start: Start | None
    partitions: int | None
    replication: int | None
    retention: Seconds | None
    create: bool | None
    transactional: bool | None
    timeout: Seconds | None
    session: Seconds | None
    revoke_wait: Seconds | None
    linger: Seconds | None
    compression: Compression | None
    max_message_size: int | None
    batch_size: int | None
    client_id: str | None
    sasl_mechanism: str | None
    tls: bool | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_verify: bool | None
    config: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class KafkaAddress(ServerAddress):
    """A Kafka address with its options; see ``KafkaTransport``. Its repr holds no secret."""

    kind = "Kafka"
    form = "kafka://user:password@host:9092,host:9092/?option=value"
    schemes: ClassVar[Mapping[str, Scheme]] = {
        "kafka": Scheme(9092, several=True),
        "kafkas": Scheme(9093, tls=True, several=True),
    }
    default_host = "localhost"

    name: str = text("kafka", empty=False)
    group: str | None = text(None, empty=False)
    start: str = choice("beginning", ("beginning", "end"))
    partitions: int = whole(0)
    replication: int = whole(0)
    retention: float = duration(_WEEK, minimum=60)
    create: bool = flag(True)
    transactional: bool = flag(False)
    timeout: float = duration(10.0, minimum=0.5)
    session: float = duration(10.0, minimum=1)
    revoke_wait: float = duration(5.0)
    linger: float = duration(0.005)
    compression: str = choice("none", ("none", "gzip", "snappy", "lz4", "zstd"))
    max_message_size: int = whole(1_000_000, minimum=1000)
    batch_size: int = whole(500, minimum=1)
    client_id: str = text("matador", empty=False)
    sasl_mechanism: str | None = text(None)
    config: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        mechanism = self.sasl_mechanism
        if mechanism is not None and mechanism.upper() not in _MECHANISMS:
            raise ConfigurationError(
                f"Kafka: sasl_mechanism must be one of {', '.join(_MECHANISMS)}, got {mechanism!r}"
            )
        if self.password is not None and self.user is None:
            raise ConfigurationError(f"Kafka: a password without a user; write {self.form}")
        if self.tls_server_name is not None:
            raise ConfigurationError(
                "Kafka: tls_server_name is not supported; certificates must have the hosts' names"
            )
        if self.linger > 1:
            raise ConfigurationError(f"Kafka: linger must be at most 1 s, got {self.linger:g}")
        for name in self.config:
            if name in _OURS:
                raise ConfigurationError(
                    f"Kafka: config must not set {name!r}, which the transport depends on"
                )

    @property
    def where(self) -> str:
        """The cluster in a few words: for logs and errors."""
        return f"Kafka at {self.listed_hosts}"

    def client_settings(self) -> Settings:
        """What every client has: where the cluster is, who we are, and how long to wait."""
        secure = "SSL" if self.tls else "PLAINTEXT"
        settings: Settings = {
            "bootstrap.servers": ",".join(_bracketed(*host) for host in self.hosts),
            "client.id": self.client_id,
            "security.protocol": secure,
            "socket.keepalive.enable": True,
            "socket.nagle.disable": True,
            "socket.timeout.ms": round(self.timeout * 1000),
            "socket.connection.setup.timeout.ms": round(max(1.0, self.timeout) * 1000),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 10_000,
            "logger": LOG,
        }
        if self.user is not None or self.sasl_mechanism is not None:
            settings["security.protocol"] = f"SASL_{secure}"
            settings["sasl.mechanism"] = (self.sasl_mechanism or "PLAIN").upper()
        if self.user is not None:
            settings |= {"sasl.username": self.user, "sasl.password": self.password or ""}
        if self.tls:
            files = {
                "ssl.ca.location": self.tls_ca,
                "ssl.certificate.location": self.tls_cert,
                "ssl.key.location": self.tls_key,
            }
            settings |= {name: path for name, path in files.items() if path is not None}
            if not self.tls_verify:
                settings["enable.ssl.certificate.verification"] = False
                settings["ssl.endpoint.identification.algorithm"] = "none"
        return settings | dict(self.config)

    def producer_settings(self) -> Settings:
        """Each message is confirmed by all replicas that are in sync, and stored once."""
        return self.client_settings() | {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": self.linger * 1000,
            "compression.type": self.compression,
            "partitioner": "murmur2_random",  # as in Java: keys meet those of other programs
            "message.max.bytes": 1_000_000_000,  # the broker has the limit
            "delivery.timeout.ms": round(self.timeout * 1000),
            "topic.metadata.propagation.max.ms": 1000,
        }

    def consumer_settings(self, group: str) -> Settings:
        """Commits are made by us alone, and only messages of committed transactions are seen."""
        return self.client_settings() | {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # see QueueConsumer
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(self.session * 1000),
            "heartbeat.interval.ms": round(self.session * 1000 / 4),
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,  # or reading stops for a second whenever it was ahead
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": 1_024,  # of a queue; more is not faster
        }


def _bracketed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_kafka_address(url: str, given: Mapping[str, Any]) -> KafkaAddress:
    """Read an address with its options; keywords win over what it says.

    Raises:
        ConfigurationError: it is malformed, or an option is invalid.
    """
    options = dict(given)
    config: object = options.pop("config", None) or {}
    if not isinstance(config, Mapping):
        raise ConfigurationError("Kafka: config must be a mapping of librdkafka settings")
    made = read_address(KafkaAddress, url, options)
    return replace(made, config=dict(cast("Mapping[str, Any]", config)))
