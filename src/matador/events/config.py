"""The configuration of an application: one frozen value, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matador.codec.base import Codec
from matador.codec.headers import HeaderCodec
from matador.codec.json import JsonCodec
from matador.errors import ConfigurationError
from matador.events.checkpoints import CheckpointStore, NoCheckpointStore
from matador.events.fanout import UnsupportedDelays
from matador.events.handler import MalformedStrategy
from matador.events.hooks import Hooks
from matador.model.capabilities import DeliveryMode
from matador.model.options import Seconds, suggestion, whole_number
from matador.model.schema import Schema
from matador.model.sending import SendErrors
from matador.model.topology import Topology
from matador.policy.retry import RetryPolicy, StandardRetryPolicy
from matador.runtime.lifecycle import Shutdown
from matador.transports.base import Transport
from matador.transports.clock import Clock, SystemClock
from matador.transports.urls import transport_from_url

DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024
"""Bytes of the largest message, unless told otherwise: 1 MiB."""

_CHOICES = {
    "delivery": ("at-least-once", "at-most-once"),
    "malformed": ("dead-letter", "reject", "ignore"),
    "unsupported_delays": ("error", "deliver-now"),
    "send_errors": ("raise", "report"),
}


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """What an application is made of. See ``Matador`` for what each option means.

    ``url`` is what ``transport`` was made from, if it was: a second connection can be opened.
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
    def of(
        cls,
        transport: str | Transport,
        *,
        schema: Schema,
        topology: Topology | None = None,
        consume_from: Iterable[str] = (),
        codec: Codec | None = None,
        retry: RetryPolicy | None = None,
        delivery: DeliveryMode = "at-least-once",
        shutdown: Shutdown | Seconds | None = None,
        checkpoints: CheckpointStore | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        malformed: MalformedStrategy = "dead-letter",
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        unsupported_delays: UnsupportedDelays = "error",
        send_errors: SendErrors = "raise",
        clock: Clock | None = None,
    ) -> AppConfig:
        """The configuration for what a user has given.

        Raises:
            ConfigurationError: an option is invalid.
            QueueNotFoundError: a queue to consume that the topology does not have.
        """
        given = locals()
        for name, choices in _CHOICES.items():
            _check_choice(name, given[name], choices)
        if not isinstance(schema, Schema):  # pyright: ignore[reportUnnecessaryIsInstance] - users
            raise ConfigurationError(f"Matador: schema must be a Schema, got {schema!r}")
        queues = topology or Topology("matador", queues=["events"])
        return cls(
            transport=transport_from_url(transport) if isinstance(transport, str) else transport,
            url=transport if isinstance(transport, str) else None,
            schema=schema,
            topology=queues,
            consume_from=_queue_names(queues, consume_from),
            codec=codec,
            retry=StandardRetryPolicy() if retry is None else retry,
            delivery=delivery,
            shutdown=Shutdown.of(shutdown),
            checkpoints=NoCheckpointStore() if checkpoints is None else checkpoints,
            hooks=_hook_objects(hooks),
            malformed=malformed,
            max_message_size=whole_number(max_message_size, "Matador: max_message_size", minimum=1),
            unsupported_delays=unsupported_delays,
            send_errors=send_errors,
            clock=clock or SystemClock(),
        )

    def with_(self, **changes: Any) -> AppConfig:
        """This configuration with other options, as ``Matador`` takes them.

        Raises:
            ConfigurationError: there is no such option, or it is invalid.
        """
        options = {name: getattr(self, name) for name in _OPTIONS} | changes
        if unknown := [name for name in changes if name not in _OPTIONS]:
            hint = suggestion(unknown[0], _OPTIONS)
            raise ConfigurationError(f"Matador: unknown option {unknown[0]!r}{hint}")
        made = AppConfig.of(**options)
        return made if "transport" in changes else replace(made, url=self.url)

    @property
    def used_codec(self) -> Codec:
        """The codec: the one given, or the default for the transport."""
        if self.codec is not None:
            return self.codec
        headers = self.transport.capabilities.docket_in_headers
        return HeaderCodec() if headers else JsonCodec()


_OPTIONS = tuple(name for name in AppConfig.__dataclass_fields__ if name != "url")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        raise ConfigurationError(
            f"Matador: {name} must be {allowed}, got {value!r}{suggestion(str(value), choices)}"
        )


def _hook_objects(hooks: Hooks | Sequence[Hooks] | None) -> tuple[Hooks, ...]:
    if hooks is None:
        return ()
    return tuple(hooks) if isinstance(hooks, Sequence) else (hooks,)


def _queue_names(topology: Topology, queues: Iterable[str]) -> tuple[str, ...]:
    given = [queues] if isinstance(queues, str) else list(queues)
    return tuple(dict.fromkeys(topology.queue(name).name for name in given))
