"""Makes the messages of events that are sent with options, many of a kind: replays and pipelines.

What such events have in common is prepared once: where they go, and the text of the docket. Each of
them adds its id, data, time, earlier state, correlation id and metadata. ``FanOut`` makes whatever
needs more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from matador.codec.base import OpenStencil, leaving_open
from matador.errors import InvalidEventError
from matador.events.config import AppConfig
from matador.events.fanout import (
    FanOut,
    Order,
    Outgoing,
    Target,
    derived_id,
    merged_metadata,
    plain_docket,
)
from matador.events.plain import Plain
from matador.model.envelope import Docket, Envelope
from matador.model.event import EventType
from matador.model.message import Message
from matador.model.sending import SendOptions
from matador.model.subscriber import SubscriberStub

_MOST_KINDS = 1000

_Kind: TypeAlias = tuple[str, tuple[str, ...] | None, str | None]
"""The key of an event, the subscribers that were chosen, and the queue."""


class WithOptions(Plain, frozen=True, gc=False):
    """The parts of an envelope that differ among those of a kind."""

    before: Any = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def envelope(self) -> Envelope[Any]:
        """The envelope."""
        docket = msgspec.structs.replace(
            self.docket,
            created_at=self.created_at,
            correlation_id=self.correlation_id,
            metadata=self.metadata or {},
        )
        return Envelope(self.id, self.payload, docket, self.before)


class OpenWay(msgspec.Struct, frozen=True):
    """How the envelopes of a kind reach one subscriber."""

    target: Target
    subscriber: str
    queue: str
    docket: Docket
    stencil: OpenStencil


class Prepared(msgspec.Struct, frozen=True):
    """A kind of events. ``keeps_id``: the id in the options is that of the only envelope."""

    event: EventType
    ways: tuple[OpenWay, ...]
    keeps_id: bool


class PreparedSends:
    """Prepares kinds of events on first use. Belongs to the event loop of its application."""

    def __init__(self, config: AppConfig, fan_out: FanOut) -> None:
        self._fan_out = fan_out
        self._codec = config.used_codec
        self._open = leaving_open(config.used_codec)
        self._in_process = config.transport.capabilities.in_process
        self._new_id = config.clock.new_id
        self._known: dict[_Kind, Prepared | None] = {}

    def make(
        self,
        event: EventType,
        payload: Any,
        options: SendOptions,
        universal: Mapping[str, Any] | None,
        now: datetime,
    ) -> Order | None:
        """The same messages as ``FanOut.make``, in less time; None if only that can make them.

        Raises:
            InvalidEventError, SubscriberNotRegisteredError, QueueNotFoundError: see there.
        """
        prepared = self._prepared(event, options)
        if prepared is None or not _is_simple(options):
            return None
        payload, data = self._fan_out.encoded(event, payload)
        before = options.before
        raw_before = None if before is None else self._codec.encode_payload(event, before)
        metadata = merged_metadata(event, universal, options.metadata)
        correlation_id, given, largest = options.correlation_id, options.id, self._fan_out.largest
        outgoing: list[Outgoing] = []
        for way in prepared.ways:
            if given is None:
                id_ = self._new_id()
            else:
                id_ = given if prepared.keeps_id else derived_id(given, way.subscriber)
            encoded = way.stencil(id_, data, now, raw_before, correlation_id, metadata)
            if len(encoded.body) > largest:
                return None
            sent = WithOptions(
                id_, payload, way.docket, now, None, None, before, correlation_id, metadata
            )
            message = Message(id_, way.queue, encoded.body, encoded.headers)
            outgoing.append(Outgoing(way.target, sent, message))
        return Order(event, 0, outgoing)

    def _prepared(self, event: EventType, options: SendOptions) -> Prepared | None:
        if type(options.subscribers) not in _SUBSCRIBERS:
            return None
        kind = event.key, options.subscribers, options.queue
        found = self._known.get(kind)
        if found is None:
            if kind in self._known or len(self._known) >= _MOST_KINDS:
                return None
            found = self._known[kind] = self._prepare(event, options)
        # Somebody may have made another event of the same key.
        return found if found is not None and found.event is event else None

    def _prepare(self, event: EventType, options: SendOptions) -> Prepared | None:
        targets = self._fan_out.targets(event, options)
        if self._open is None or any(map(self._needs_more, targets)):
            return None
        try:
            ways = tuple(self._way(event, target) for target in targets)
        except InvalidEventError:  # raised when the event is sent
            return None
        chosen = options.subscribers
        return Prepared(event, ways, chosen is not None and len(chosen) == 1)

    def _needs_more(self, target: Target) -> bool:
        stub = isinstance(target.subscriber, SubscriberStub)
        return target.subscriber.enabled is not None or (self._in_process and stub)

    def _way(self, event: EventType, target: Target) -> OpenWay:
        assert self._open is not None
        docket = plain_docket(event, target)
        stencil = self._open.prepare_open(docket)
        return OpenWay(target, target.subscriber.name, target.names[0], docket, stencil)


_SUBSCRIBERS = frozenset((tuple, type(None)))


def _is_simple(options: SendOptions) -> bool:
    """Are there only options that a prepared event can have, and is there nothing to check?"""
    id_, correlation_id, metadata = options.id, options.correlation_id, options.metadata
    return (
        options.delay is None
        and options.priority is None
        and options.ordering_key is None
        and (id_ is None or (type(id_) is str and id_.isascii()))
        and (correlation_id is None or (type(correlation_id) is str and correlation_id.isascii()))
        and (metadata is None or type(metadata) is dict)
    )
