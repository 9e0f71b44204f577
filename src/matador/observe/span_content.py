"""What spans say about messages and errors, in the words of OpenTelemetry's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from matador.model.envelope import Docket
from matador.model.text import error_text
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.trace import Span

About: TypeAlias = tuple[str, Mapping[str, Any]]
"""The name of a span, and attributes that many messages have in common."""

_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}
_MOST_KEPT = 1000  # of queues and events there are few


class KeptContent:
    """Names and attributes of spans, each made once."""

    def __init__(self) -> None:
        self._sends: dict[tuple[str, str], About] = {}
        self._processes: dict[tuple[str, str], About] = {}

    def send(self, transport: str, key: str) -> About:
        """Of a send of an event; of several, if the key is empty."""
        found = self._sends.get((transport, key))
        if found is None:
            found = f"send {key}" if key else "send", attributes(transport, key, "send")
            if len(self._sends) < _MOST_KEPT:
                self._sends[transport, key] = found
        return found

    def process(self, queue: str, transport: str) -> About:
        """Of an attempt to handle a message of a queue."""
        found = self._processes.get((queue, transport))
        if found is None:
            found = f"process {queue}", attributes(transport, queue, "process")
            if len(self._processes) < _MOST_KEPT:
                self._processes[queue, transport] = found
        return found


def attributes(transport: str, destination: str, operation: str) -> dict[str, Any]:
    """What a span says about a message."""
    about: dict[str, Any] = {
        "messaging.system": _SYSTEMS.get(transport, transport),
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if destination:
        about["messaging.destination.name"] = destination
    return about


def about_message(about: Mapping[str, Any], message_id: str, docket: Docket) -> dict[str, Any]:
    """The attributes of an attempt to handle an event."""
    more: dict[str, Any] = {
        **about,
        "messaging.message.id": message_id,
        "matador.event": docket.event_key,
        "matador.subscriber": docket.target_subscriber,
        "matador.attempt": docket.attempts,
    }
    if docket.correlation_id is not None:
        more["messaging.message.conversation_id"] = docket.correlation_id
    return more


def record_error(span: Span, error: BaseException) -> None:
    """Note on a span that it failed, without secrets."""
    from opentelemetry.trace import StatusCode

    if not span.is_recording():
        return
    text = without_secrets(error_text(error))
    kind = type(error).__name__
    span.add_event("exception", {"exception.type": kind, "exception.message": text})
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, text)
