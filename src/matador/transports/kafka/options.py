"""Addresses of Kafka and their options, and the settings and the logger of the client library."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

from matador.errors import ConfigurationError
from matador.model.options import Seconds
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
"""Settings of librdkafka by name."""

LOG = logging.getLogger("matador.transports.kafka")
"""The logger of the client library, without repeated lines and lost connections."""

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_WEEK = 7 * 86_400.0
_REPEAT_AFTER = 30.0
_MAX_LINES = 500
_CONNECTION = re.compile(
    r"\[thrd:.*(Connect to|[Cc]onnection refused|Disconnected|brokers are down)"
)
# The transport relies on these settings. Any other value would lose or repeat messages.
_RESERVED = frozenset(
    (
        *("bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store"),
        *("auto.offset.reset", "partition.assignment.strategy", "enable.idempotence", "acks"),
        *("transactional.id", "isolation.level", "error_cb", "on_commit", "logger", "log_cb"),
    )
)


class KafkaOptions(ReconnectOptions, total=False):
    """The options as keywords. The address accepts all of them except ``config``."""

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
            if name in _RESERVED:
                raise ConfigurationError(
                    f"Kafka: config must not set {name!r}, which the transport depends on"
                )

    @property
    def where(self) -> str:
        """The cluster, for logs and errors."""
        return f"Kafka at {self.listed_hosts}"

    def client_settings(self) -> Settings:
        """The settings of every client: hosts, credentials and timeouts."""
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
        """All in-sync replicas confirm each message, and retries store it once."""
        return self.client_settings() | {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": self.linger * 1000,
            "compression.type": self.compression,
            "partitioner": "murmur2_random",  # as in Java, so that keys of other programs match
            "message.max.bytes": 1_000_000_000,  # the broker has the limit
            "delivery.timeout.ms": round(self.timeout * 1000),
            "topic.metadata.propagation.max.ms": 1000,
        }

    def consumer_settings(self, group: str) -> Settings:
        """Only the transport commits, and only committed transactions are read."""
        return self.client_settings() | {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # see ``Poller``
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(self.session * 1000),
            "heartbeat.interval.ms": round(self.session * 1000 / 4),
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,  # by default, a full queue stops reading for a second
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": 1_024,  # more is not faster
        }


def _bracketed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_kafka_address(url: str, given: Mapping[str, Any]) -> KafkaAddress:
    """Read an address with its options; a keyword wins over the address.

    Raises:
        ConfigurationError: the address is malformed, or an option is invalid.
    """
    options = dict(given)
    config: object = options.pop("config", None) or {}
    if not isinstance(config, Mapping):
        raise ConfigurationError("Kafka: config must be a mapping of librdkafka settings")
    made = read_address(KafkaAddress, url, options)
    return replace(made, config=dict(cast("Mapping[str, Any]", config)))


class RepetitionFilter(logging.Filter):
    """Passes a line once in 30 seconds, and then says how often it was repeated.

    While a broker is down, each client logs each attempt to connect: dozens a second. The transport
    logs once that the cluster cannot be reached, so those lines appear only at the level INFO.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _CONNECTION.search(text) and not LOG.isEnabledFor(logging.INFO):
            return False
        line = text.partition(" (after ")[0]  # lines that differ in a duration are the same
        now = self._now()
        with self._lock:
            since, left_out = self._seen.get(line, (now - _REPEAT_AFTER, 0))
            if now - since < _REPEAT_AFTER:
                self._seen[line] = since, left_out + 1
                return False
            if len(self._seen) >= _MAX_LINES:
                self._seen.clear()
            self._seen[line] = now, 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out:,} more like this were left out)", ()
        return True


LOG.addFilter(RepetitionFilter())
