"""AsyncAPI 3 documents.

A queue is a channel, a type of message is a message, and a receiver is an operation. An event is
sent once for each subscriber, so that each queue of an event has an operation that sends it, too.
Data without a place in AsyncAPI is in extensions that start with ``x-matador``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import msgspec

from matador.catalog.contents import Catalogue, MessageType, Receiver
from matador.catalog.payload_schemas import REFERENCE, JsonSchema, PayloadSchemas
from matador.model.envelope import Docket

VERSION = "3.0.0"
"""Of AsyncAPI."""

KEY = "x-matador-key"
KIND = "x-matador-kind"
ALIASES = "x-matador-aliases"
RECEIVERS = "x-matador-receivers"

Document: TypeAlias = dict[str, Any]

_HEADERS = {
    "x-matador-event-key": ("string", True),
    "x-matador-subscriber": ("string", True),
    "x-matador-created-at": ("string", True),
    "x-matador-importance": ("string", True),
    "x-matador-attempts": ("integer", True),
    "x-matador-scheduled-for": ("string", False),
    "x-matador-original-queue": ("string", False),
    "x-matador-first-error": ("string", False),
    "x-matador-last-error": ("string", False),
    "x-matador-correlation-id": ("string", False),
}


def asyncapi(catalogue: Catalogue) -> tuple[Document, list[str]]:
    """The AsyncAPI document of a catalogue, and the payload types that it cannot describe.

    The same catalogue gives the same document, so that it can be kept in a repository.

    Example:
        >>> document, problems = asyncapi(catalogue)
        >>> document["channels"]["shop.billing"]["address"]
        'shop.billing'
    """
    return _Writer(catalogue).document()


def data_schema(message: Document) -> Any:
    """The schema of a message's data: of an event, without the envelope around them."""
    payload = message.get("payload", {})
    if message[KIND] == "event" and isinstance(payload, dict):
        fields = cast("Document", payload).get("properties", {})
        return cast("Document", fields).get("data", {}) if isinstance(fields, dict) else {}
    return payload


class _Writer:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._schemas = PayloadSchemas()
        self._ids: dict[tuple[str, str], str] = {}
        self._channels: dict[str, Document] = {}
        self._operations: dict[str, Document] = {}
        self._messages: dict[str, Document] = {}

    def document(self) -> tuple[Document, list[str]]:
        catalogue = self._catalogue
        for message in catalogue.messages:
            received = [one for one in catalogue.receivers if one.message == message]
            self._add_message(message, received)
        for receiver in catalogue.receivers:
            self._add_receiver(receiver)
        for message in catalogue.messages:
            if message.kind == "event":
                self._add_sends(message)
        document = {
            "asyncapi": VERSION,
            "info": {"title": catalogue.title, "version": catalogue.version},
            "defaultContentType": "application/json",
            "channels": self._channels,
            "operations": self._operations,
            "components": {
                "messages": self._messages,
                "schemas": dict(sorted(self._schemas.components.items())),
            },
        }
        return document, self._schemas.problems

    def _id(self, kind: str, text: str) -> str:
        """An identifier for a name; different names never share one."""
        plain = re.sub(r"[^\w.-]", "_", text, flags=re.ASCII) or "_"
        number, free = 1, plain
        while (kind, free) in self._ids and self._ids[kind, free] != text:
            number += 1
            free = f"{plain}_{number}"
        self._ids[kind, free] = text
        return free

    def _message_id(self, message: MessageType) -> str:
        named = message.key if message.kind == "event" else f"{message.kind}.{message.key}"
        return self._id("message", named)

    # -- messages ---------------------------------------------------------------------------------

    def _add_message(self, message: MessageType, receivers: Iterable[Receiver]) -> None:
        data = self._schemas.of(message.payload)
        written: Document = {
            "name": message.key,
            "title": message.key,
            "summary": message.description,
            "contentType": message.content_type,
            "payload": self._body(message, data),
            KIND: message.kind,
            KEY: message.key,
        }
        if message.wire == "headers":
            written["headers"] = {
                "type": "object",
                "properties": {name: {"type": kind} for name, (kind, _) in _HEADERS.items()},
                "required": [name for name, (_, required) in _HEADERS.items() if required],
            }
        if message.aliases:
            written[ALIASES] = list(message.aliases)
        named = [one.name for one in receivers]
        if named:
            written[RECEIVERS] = named
        self._messages[self._message_id(message)] = written

    def _body(self, message: MessageType, data: JsonSchema) -> JsonSchema:
        if message.wire == "plain":
            return data
        fields: dict[str, Any] = {"id": {"type": "string", "format": "uuid"}, "data": data}
        # The previous state has the same type, and may be null.
        fields["before"] = {"anyOf": [data, {"type": "null"}]} if data else {}
        required = ["id", "data"]
        typed = message.metadata is not None
        metadata = self._schemas.of(message.metadata) if typed else {"type": "object"}
        if message.wire == "headers":
            fields["metadata"] = metadata
        else:
            docket = self._docket()
            own = {"type": "object", "properties": {"metadata": metadata}}
            fields["docket"] = {"allOf": [docket, own]} if typed else docket
            required.append("docket")
        return {"type": "object", "properties": fields, "required": required}

    def _docket(self) -> JsonSchema:
        if "matador.Docket" not in self._schemas.components:
            (_, components) = msgspec.json.schema_components([Docket])
            schema = dict(components["Docket"])
            schema["description"] = "Data of Matador about a message."
            self._schemas.components["matador.Docket"] = schema
        return {"$ref": f"{REFERENCE}matador.Docket"}

    # -- channels and operations ------------------------------------------------------------------

    def _channel(self, address: str, message: MessageType) -> tuple[str, str]:
        """The ids of a queue and of a message in it, which are in the document from now on."""
        channel_id, message_id = self._id("channel", address), self._message_id(message)
        channel = self._channels.setdefault(channel_id, {"address": address, "messages": {}})
        reference = {"$ref": f"#/components/messages/{message_id}"}
        channel["messages"][message_id] = reference
        return channel_id, message_id

    def _references(self, address: str, message: MessageType) -> Document:
        channel_id, message_id = self._channel(address, message)
        channel = f"#/channels/{channel_id}"
        return {
            "channel": {"$ref": channel},
            "messages": [{"$ref": f"{channel}/messages/{message_id}"}],
        }

    def _add_receiver(self, receiver: Receiver) -> None:
        message = receiver.message
        references = self._references(receiver.address, message)
        if receiver.elsewhere:  # another service receives it: this one only sends
            return
        verb = {"event": "handle", "job": "run", "command": "answer"}.get(message.kind, "receive")
        named = f"{verb}.{message.key}.{receiver.name}"
        operation: Document = {
            "action": "receive",
            "title": receiver.name,
            "summary": receiver.description or receiver.name,
            **references,
        }
        if receiver.reply is not None:
            operation["reply"] = self._reply(receiver)
        operation.update({f"x-matador-{name}": text for name, text in receiver.details.items()})
        self._operations[self._id("operation", named)] = operation

    def _reply(self, receiver: Receiver) -> Document:
        assert receiver.reply is not None
        self._add_message(receiver.reply, ())
        # The caller chooses the reply address, which is in its request.
        message_id = self._message_id(receiver.reply)
        channel_id = self._id("channel", f"replies of {receiver.address}")
        channel = self._channels.setdefault(channel_id, {"address": None, "messages": {}})
        channel["messages"][message_id] = {"$ref": f"#/components/messages/{message_id}"}
        path = f"#/channels/{channel_id}"
        return {
            "channel": {"$ref": path},
            "messages": [{"$ref": f"{path}/messages/{message_id}"}],
        }

    def _add_sends(self, message: MessageType) -> None:
        addresses: dict[str, list[Receiver]] = {}
        for one in self._catalogue.receivers:
            if one.message == message:
                addresses.setdefault(one.address, []).append(one)
        for address, receivers in addresses.items():
            elsewhere = [one.name for one in receivers if one.elsewhere]
            operation: Document = {
                "action": "send",
                "title": f"send {message.key}",
                "summary": f"One message for each of: {', '.join(one.name for one in receivers)}.",
                **self._references(address, message),
            }
            if elsewhere:
                operation["x-matador-handled-elsewhere"] = elsewhere
            self._operations[self._id("operation", f"send.{message.key}.{address}")] = operation
