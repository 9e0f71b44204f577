"""The configuration of an application: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError
from matador.model.arguments import check_arguments
from matador.model.capabilities import DeliveryMode
from matador.model.options import (
    Seconds,
    one_of,
    optional_seconds,
    seconds,
    suggestion,
    whole_number,
)
from matador.model.schema import Schema
from matador.model.sending import SendErrors
from matador.model.topology import Topology
from matador.policy.dedup import Deduplication
from matador.policy.retry import RetryPolicy, StandardRetryPolicy
from matador.policy.validation import Malformed
from matador.runtime.checkpoints import CheckpointStore, NoCheckpointStore
from matador.runtime.hooks import Hooks, hook_objects
from matador.runtime.service import Shutdown
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.urls import transport_from_url

UnsupportedDelays: TypeAlias = Literal["error", "deliver-now"]
"""What happens if the transport does not support a delay: an error, or a warning and no delay."""

DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024
"""The default size limit of a message: 1 MiB."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "delivery": get_args(DeliveryMode),
    "malformed": get_args(Malformed),
    "unsupported_delays": get_args(UnsupportedDelays),
    "send_errors": get_args(SendErrors),
}


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """The options of an application. See ``Matador`` for what each option means.

    ``url`` is the URL the transport was created from, if any; it allows a second connection.
    """

    transport: Transport
    url: str | None
    schema: Schema
    topology: Topology
    consume_from: tuple[str, ...]
    codec: Codec | None
    retry: RetryPolicy | None
    timeout: float | None
    concurrency: int
    delivery: DeliveryMode
    shutdown: Shutdown
    checkpoints: CheckpointStore
    hooks: tuple[Hooks, ...]
    malformed: Malformed
    max_message_size: int
    unsupported_delays: UnsupportedDelays
    send_errors: SendErrors
    deduplication: Deduplication | None
    connect_timeout: float
    clock: Clock

    @classmethod
    def of(cls, **options: Any) -> AppConfig:
        """The configuration for the options of ``Matador``, all of which must be given.

        Raises:
            ConfigurationError: an option is invalid.
            QueueNotFoundError: the topology has no such queue to consume.
        """
        for name, choices in _CHOICES.items():
            one_of(options[name], f"Matador: {name}", choices)
        transport, schema = options["transport"], options["schema"]
        if not isinstance(schema, Schema):
            raise ConfigurationError(
                f"Matador: schema must be a Schema, got {schema!r}; write "
                f"schema=Schema({{OrderPlaced: [email_receipt]}})"
            )
        names = ("retry", "codec", "topology", "checkpoints", "deduplication", "clock")
        check_arguments("Matador", **{name: options[name] for name in names})
        topology = options["topology"] or Topology("matador", queues=["events"])
        url = transport if isinstance(transport, str) else None
        size, checkpoints = options["max_message_size"], options["checkpoints"]
        checked: dict[str, Any] = {
            "transport": transport if url is None else transport_from_url(url),
            "url": url,
            "topology": topology,
            "consume_from": _queue_names(topology, options["consume_from"]),
            "shutdown": Shutdown.of(options["shutdown"]),
            "checkpoints": NoCheckpointStore() if checkpoints is None else checkpoints,
            "hooks": hook_objects(options["hooks"], "Matador"),
            "connect_timeout": seconds(options["connect_timeout"], "Matador: connect_timeout"),
            "max_message_size": whole_number(size, "Matador: max_message_size", minimum=1),
            "timeout": optional_seconds(options["timeout"], "Matador: timeout", minimum=0.001),
            "concurrency": whole_number(options["concurrency"], "Matador: concurrency", minimum=1),
            "clock": options["clock"] or SystemClock(),
        }
        return cls(**options | checked)

    def with_(self, **changes: Unpack[AppOptions]) -> AppConfig:
        """A copy with some options of ``Matador`` changed.

        Raises:
            ConfigurationError: an option is unknown or invalid.
        """
        options = {name: getattr(self, name) for name in _OPTIONS} | changes
        if unknown := [name for name in changes if name not in _OPTIONS]:
            hint = suggestion(unknown[0], _OPTIONS)
            raise ConfigurationError(f"Matador: unknown option {unknown[0]!r}{hint}")
        made = AppConfig.of(**options)
        return made if "transport" in changes else replace(made, url=self.url)

    @property
    def used_retry(self) -> RetryPolicy:
        """The given retry policy, or the standard one with the delays of the topology."""
        if self.retry is not None:
            return self.retry
        delays = self.topology.retry
        return StandardRetryPolicy(base_delay=delays.default_delay, max_delay=delays.max_delay)

    @property
    def used_codec(self) -> Codec:
        """The given codec, or the default for the transport."""
        if self.codec is not None:
            return self.codec
        headers = self.transport.capabilities.docket_in_headers
        return HeaderCodec() if headers else JsonCodec()


class AppOptions(TypedDict, total=False):
    """The options of ``Matador``, to change some of them. See ``Matador`` for their meaning."""

    transport: str | Transport
    schema: Schema
    topology: Topology | None
    consume_from: Iterable[str]
    codec: Codec | None
    retry: RetryPolicy | None
    timeout: Seconds | None
    concurrency: int
    delivery: DeliveryMode
    shutdown: Shutdown | Seconds | None
    checkpoints: CheckpointStore | None
    hooks: Hooks | Sequence[Hooks] | None
    malformed: Malformed
    max_message_size: int
    unsupported_delays: UnsupportedDelays
    send_errors: SendErrors
    deduplication: Deduplication | None
    connect_timeout: Seconds
    clock: Clock | None


_OPTIONS = tuple(name for name in AppConfig.__dataclass_fields__ if name != "url")


def _queue_names(topology: Topology, queues: Iterable[str]) -> tuple[str, ...]:
    given = [queues] if isinstance(queues, str) else list(queues)
    return tuple(dict.fromkeys(topology.queue(name).name for name in given))
