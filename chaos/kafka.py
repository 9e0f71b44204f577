"""Kafka as a profile: a server of the run's own, looked into with a plain client.

It has two listeners: one that the profile uses, and one that tells its clients to come through the
proxy. What was handled is read off the commits of the queue's group, a group a scenario.
"""

from __future__ import annotations

import os
import time
import zlib
from base64 import b64decode, b85decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition, admin
from confluent_kafka.cimpl import NewTopic

from chaos.application import NAMESPACE
from chaos.checker import Stored
from chaos.processes import ROOT
from chaos.profiles import SEND_TIMEOUT, Unplayable, target_of
from chaos.proxy import Proxy
from chaos.servers import Server, own_server
from matador.model.message import REASON_HEADER
from matador.model.topology import DEAD_LETTER_KINDS

_PATIENCE = 30.0
_ANSWER = 5.0
_LOOK = 0.05
# Sessions as short as the leases of the scenarios, and rights that can be taken away.
_ENVIRONMENT = (
    ("MATADOR_KAFKA_PROXIED", "1"),
    ("MATADOR_KAFKA_MEMORY", "384m"),
    (
        "MATADOR_KAFKA_SETTINGS",
        """
group.min.session.timeout.ms=1000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
""",
    ),
)
_PROXIED, _ADVERTISED = (
    2,
    3,
)  # ports from that of the server on: what the proxy forwards to, and its own
_MARK, _SHORT_MARK = "m1:", "m0:"
_DELAYED = ".delayed"
_CLOCK = 15  # the partition of a topic of delayed messages in which there are none
_ID = "x-matador-id"
_USER = "User:ANONYMOUS"
_FIRST = "first"

T = TypeVar("T")

_api: Any = admin  # untyped: it does not say that it exports what its documentation names


@dataclass(frozen=True)
class _Rest:
    """What is left of a partition: from ``start`` to ``end``, without what is ``finished``."""

    start: int
    end: int
    finished: frozenset[int]

    @property
    def count(self) -> int:
        return max(0, self.end - self.start) - sum(
            self.start <= one < self.end for one in self.finished
        )


@cache
def _server(library: str) -> Server:
    """This process's server. It makes its own topics when they are first needed: now."""
    server = own_server("kafka", (("MATADOR_KAFKA_LIB", library), *_ENVIRONMENT))
    settings: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 2}
    client = _api.AdminClient(settings)  # it ends with its last reference
    client.create_topics([NewTopic(_FIRST, 1, 1)])[_FIRST].result()
    producer = Producer({**settings, "enable.idempotence": True})
    producer.produce(_FIRST, b"")
    consumer = Consumer({**settings, "group.id": _FIRST})
    _until_it_answers(lambda: consumer.committed([TopicPartition(_FIRST, 0)], timeout=_ANSWER))
    consumer.close()
    if producer.flush(_PATIENCE):
        raise RuntimeError(f"Kafka took no message for {_PATIENCE:g} s")
    return server


class KafkaProfile:
    durable = True
    leases = True
    ordered = True
    atomic = False
    rereads_queues = True
    buffers = 8 << 20  # a fetch is under way while the one before is read, of delays as well

    def __init__(self, folder: Path) -> None:
        shared = Path(os.environ.get("MATADOR_BROKERS_FOLDER", ROOT / ".brokers"))
        library = os.environ.get("MATADOR_KAFKA_LIB", str(shared / "kafka" / "lib"))
        if not Path(library).is_dir():
            raise Unplayable("there is no Kafka: script/brokers up kafka downloads it")
        self._library = library
        self._server = _server(library)
        self._proxy: Proxy | None = None
        self._up = True
        self._group = f"chaos-{time.time_ns():x}"
        self._consumers: dict[str, Consumer] = {}
        self._settings: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{self._server.port}",
            "log_level": 2,  # that the server is away is no news
        }
        # Untyped: its answers are futures of anything.
        self._admin: Any = admin.AdminClient(self._settings)
        self._remove([one for one in self._topics() if one.startswith(f"{NAMESPACE}.")])

    def url(self, lease: float) -> str:
        port = self._server.port if self._proxy is None else self._proxy.port
        timeout = SEND_TIMEOUT if self._proxy is None else min(SEND_TIMEOUT, max(2.0, lease))
        return (
            f"kafka://127.0.0.1:{port}?group={self._group}"
            f"&session={max(1.0, lease):g}&timeout={timeout:g}"
        )

    def stored(self, queue: str) -> Sequence[Stored]:
        return [_stored(queue, one) for topic in _both(queue) for one in self._read(queue, topic)]

    def depth(self, queue: str) -> int:
        return sum(self._depth(queue, topic) for topic in _both(queue))

    def damage(self) -> str | None:
        return None

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if not self._up:
            self.start()
        for consumer in self._consumers.values():
            consumer.close()
        self._allow()

    def stop(self, *, kill: bool = False) -> None:
        self._up = False
        self._server.stop(kill=kill)

    def start(self) -> None:
        self._server.start()
        self._up = True

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            port = self._server.port
            self._proxy = Proxy(port + _PROXIED, port + _ADVERTISED)
        return self._proxy

    def drop_queue(self, queue: str) -> None:
        self._remove([queue])

    def spoil_queue(self, queue: str) -> None:
        """See ``SpoilsQueues``: nobody has the right to write to it."""
        self._forbid([queue])

    def mend_queue(self, queue: str) -> None:
        self._allow()

    def refuse_dead_letters(self) -> None:
        """See ``RefusesDeadLetters``: the same, for all of them."""
        self._forbid(self._dead_letters())

    def accept_dead_letters(self) -> None:
        self._allow()

    # -- looking -----------------------------------------------------------------------------------

    def _depth(self, queue: str, topic: str) -> int:
        return sum(rest.count for rest in self._rest(queue, topic).values())

    def _read(self, queue: str, topic: str) -> Iterator[Any]:
        """The records of a topic that are not finished."""
        left = {number: rest for number, rest in self._rest(queue, topic).items() if rest.count}
        if not left:
            return
        consumer = Consumer({**self._settings, "group.id": "probe", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, one, left[one].start) for one in left])
            deadline = time.monotonic() + _PATIENCE
            while left:
                for message in consumer.consume(500, _LOOK):
                    number, offset = message.partition(), message.offset()
                    rest = left.get(number) if number is not None else None
                    if message.error() or number is None or offset is None or rest is None:
                        continue
                    if offset < rest.end and offset not in rest.finished:
                        yield message
                    if offset + 1 >= rest.end:
                        del left[number]
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{topic} could not be read in {_PATIENCE:g} s: {left}")
        finally:
            consumer.close()

    def _rest(self, queue: str, topic: str) -> dict[int, _Rest]:
        """What is left of each partition; nothing if the topic is not there."""
        return _until_it_answers(lambda: self._rest_now(queue, topic))

    def _places(self, topic: str) -> list[TopicPartition]:
        described = self._admin.list_topics(topic, timeout=_ANSWER).topics[topic]
        numbers = [] if described.error else list(described.partitions)
        if topic.endswith(_DELAYED):
            numbers = [one for one in numbers if one != _CLOCK]
        return [TopicPartition(topic, number) for number in numbers]

    def _rest_now(self, queue: str, topic: str) -> dict[int, _Rest]:
        places = self._places(topic)
        if not places:
            return {}
        committed = self._consumer(queue).committed(places, timeout=_ANSWER)
        first = self._offsets(places, _api.OffsetSpec.earliest())
        end = self._offsets(places, _api.OffsetSpec.latest())
        found: dict[int, _Rest] = {}
        for place in committed:
            number = place.partition
            start = max(place.offset, first[number])
            finished = _finished(place.offset, place.metadata)
            found[number] = _Rest(start, end[number], finished)
        return found

    def _offsets(self, places: Sequence[TopicPartition], which: Any) -> dict[int, int]:
        asked = self._admin.list_offsets(dict.fromkeys(places, which), request_timeout=_ANSWER)
        return {place.partition: future.result().offset for place, future in asked.items()}

    def _consumer(self, queue: str) -> Consumer:
        """One that can be asked for the commits of the group of a queue."""
        if queue not in self._consumers:
            group = f"{self._group}.{queue}"
            self._consumers[queue] = Consumer({**self._settings, "group.id": group})
        return self._consumers[queue]

    def _topics(self) -> list[str]:
        return list(_until_it_answers(lambda: self._admin.list_topics(timeout=_ANSWER).topics))

    def _dead_letters(self) -> list[str]:
        kinds = tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)
        return [one for one in self._topics() if one.endswith(kinds)]

    # -- hurting -----------------------------------------------------------------------------------

    def _remove(self, topics: Sequence[str]) -> None:
        if topics:
            for future in self._admin.delete_topics(list(topics)).values():
                future.result()
            deadline = time.monotonic() + _PATIENCE
            while set(topics) & set(self._topics()) and time.monotonic() < deadline:
                time.sleep(_LOOK)

    def _forbid(self, topics: Sequence[str]) -> None:
        for future in self._admin.create_acls(list(_rules(topics))).values():
            future.result()
        self._wait_for_rules(2 * len(topics))

    def _allow(self) -> None:
        for future in self._admin.delete_acls([_any_rule()]).values():
            future.result()
        self._wait_for_rules(0)

    def _wait_for_rules(self, count: int) -> None:
        """The broker hears of rules a little after they were made."""
        deadline = time.monotonic() + _PATIENCE
        while len(self._admin.describe_acls(_any_rule()).result()) != count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are not {count} rules after {_PATIENCE:g} s")
            time.sleep(_LOOK)


def _any_rule() -> Any:
    return _api.AclBindingFilter(
        *(_api.ResourceType.TOPIC, None, _api.ResourcePatternType.ANY, None, None),
        *(_api.AclOperation.ANY, _api.AclPermissionType.ANY),
    )


def _rules(topics: Sequence[str]) -> Iterator[Any]:
    """Everything may be done with these topics, but writing."""
    for topic in topics:
        for operation, permission in (
            (_api.AclOperation.ALL, _api.AclPermissionType.ALLOW),
            (_api.AclOperation.WRITE, _api.AclPermissionType.DENY),
        ):
            yield _api.AclBinding(
                _api.ResourceType.TOPIC,
                topic,
                _api.ResourcePatternType.LITERAL,
                _USER,
                "*",
                operation,
                permission,
            )


def _both(queue: str) -> Sequence[str]:
    """The topic of a queue, and that of its delayed messages."""
    if queue.endswith(tuple(f".{kind}" for kind in DEAD_LETTER_KINDS)):
        return (queue,)
    return queue, queue + _DELAYED


def _finished(offset: int, text: str | None) -> frozenset[int]:
    """What is finished behind a commit, and what has a successor: it is counted there."""
    if not text or not text.startswith((_MARK, _SHORT_MARK)):
        return frozenset()
    if text.startswith(_SHORT_MARK):
        packed = b64decode(text[len(_SHORT_MARK) :])
    else:
        packed = zlib.decompress(b85decode(text[len(_MARK) :]))
    notes: list[Any] = msgspec.msgpack.decode(packed, strict=False)
    bounds: list[int] = []
    at = offset
    for step in notes[0]:
        at += step
        bounds.append(at)
    runs = zip(bounds[::2], bounds[1::2], strict=True)
    finished = {one for start, end in runs for one in range(start, end)}
    moved: Mapping[int, int] = notes[3]
    return frozenset(finished | {offset + one for one in moved})


def _until_it_answers(ask: Callable[[], T]) -> T:
    """A server that has just come back is given time to gather its wits."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return ask()
        except (KafkaException, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK)


def _stored(queue: str, message: Any) -> Stored:
    headers: dict[str, bytes | None] = dict(message.headers() or ())
    body: bytes = message.value() or b""
    id_, reason = headers.get(_ID) or b"", headers.get(REASON_HEADER)
    return Stored(
        target_of(body), id_.decode(), queue, body, None if reason is None else reason.decode()
    )
