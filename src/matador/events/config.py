"""The configuration of an application: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError
from matador.events.checkpoints import CheckpointStore, NoCheckpointStore
from matador.events.hooks import Hooks
from matador.model.capabilities import DeliveryMode
from matador.model.options import one_of, suggestion, whole_number
from matador.model.schema import Schema
from matador.model.sending import SendErrors
from matador.model.topology import Topology
from matador.policy.retry import RetryPolicy, StandardRetryPolicy
from matador.runtime.lifecycle import Shutdown
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.urls import transport_from_url

MalformedStrategy: TypeAlias = Literal["dead-letter", "reject", "ignore"]
"""What happens to messages that cannot be decoded. ``dead-letter`` (default): kept unchanged among
the undeliverable ones. ``reject``: deleted, with an error in the log. ``ignore``: deleted."""

UnsupportedDelays: TypeAlias = Literal["error", "deliver-now"]
"""What happens if the transport does not support a delay: an error, or a warning and no delay."""

DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024
"""The default size limit of a message: 1 MiB."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "delivery": get_args(DeliveryMode),
    "malformed": get_args(MalformedStrategy),
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
    retry: RetryPolicy
    delivery: DeliveryMode
    shutdown: Shutdown
    checkpoints: CheckpointStore
    hooks: tuple[Hooks, ...]
    malformed: MalformedStrategy
    max_message_size: int
    unsupported_delays: UnsupportedDelays
    send_errors: SendErrors
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
        transport, schema, retry = options["transport"], options["schema"], options["retry"]
        if not isinstance(schema, Schema):
            raise ConfigurationError(f"Matador: schema must be a Schema, got {schema!r}")
        topology = options["topology"] or Topology("matador", queues=["events"])
        url = transport if isinstance(transport, str) else None
        size, checkpoints = options["max_message_size"], options["checkpoints"]
        checked: dict[str, Any] = {
            "transport": transport if url is None else transport_from_url(url),
            "url": url,
            "topology": topology,
            "consume_from": _queue_names(topology, options["consume_from"]),
            "retry": StandardRetryPolicy() if retry is None else retry,
            "shutdown": Shutdown.of(options["shutdown"]),
            "checkpoints": NoCheckpointStore() if checkpoints is None else checkpoints,
            "hooks": _hook_objects(options["hooks"]),
            "max_message_size": whole_number(size, "Matador: max_message_size", minimum=1),
            "clock": options["clock"] or SystemClock(),
        }
        return cls(**options | checked)

    def with_(self, **changes: Any) -> AppConfig:
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
    def used_codec(self) -> Codec:
        """The given codec, or the default for the transport."""
        if self.codec is not None:
            return self.codec
        headers = self.transport.capabilities.docket_in_headers
        return HeaderCodec() if headers else JsonCodec()


_OPTIONS = tuple(name for name in AppConfig.__dataclass_fields__ if name != "url")


def _hook_objects(hooks: Hooks | Sequence[Hooks] | None) -> tuple[Hooks, ...]:
    if hooks is None:
        return ()
    return tuple(hooks) if isinstance(hooks, Sequence) else (hooks,)


def _queue_names(topology: Topology, queues: Iterable[str]) -> tuple[str, ...]:
    given = [queues] if isinstance(queues, str) else list(queues)
    return tuple(dict.fromkeys(topology.queue(name).name for name in given))
