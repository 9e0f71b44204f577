"""Replies: all clients share one topic. Each reads one partition, and keeps its own replies.

An address is ``matador.replies/3/id``: the partition, and the id of the client. Kafka deletes a
reply after an hour. A client commits nothing: it reads the replies that arrive after its address
was requested.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from zlib import crc32

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from matador.errors import QueueNotFoundError
from matador.model.message import Delivery, Message, Receipt
from matador.transports.clock import SystemClock
from matador.transports.kafka.browse import KafkaBrowser
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.topics import Topics
from matador.transports.kafka.wire import Record, read, record_of, written
from matador.transports.kit.replies import ReplySubscription

REPLIES = "matador.replies"
_ADDRESS = f"{REPLIES}/"
_PARTITIONS = 16
_KEPT = {"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}
_FOR = "x-matador-reply-for"
_POLL = 0.2
_LOG = logging.getLogger(__name__)


def is_reply(queue: str) -> bool:
    """Whether a queue is the reply address of a client."""
    return queue.startswith(_ADDRESS)


def reply_record(message: Message, limit: int) -> Record:
    """The record of a reply.

    Raises:
        QueueNotFoundError: no client can have this address.
        UnstorableError: the reply cannot be encoded.
    """
    _, _, rest = message.queue.partition("/")
    number, _, client = rest.partition("/")
    if not (number.isascii() and number.isdecimal() and int(number[:6]) < _PARTITIONS and client):
        raise QueueNotFoundError(f"{message.queue[:80]!r} is not a reply address")
    record = written(message, REPLIES, limit=limit)
    headers = [*record.headers, (_FOR, client.encode("utf-8", "replace"))]
    return msgspec.structs.replace(record, headers=headers, partition=int(number))


class Replies:
    """Receives the replies to one process, in a thread."""

    def __init__(self, client: KafkaClient, topics: Topics, browser: KafkaBrowser) -> None:
        self._client = client
        self._topics = topics
        self._browser = browser
        self._id = SystemClock().new_id()
        self._number = crc32(self._id.encode()) % _PARTITIONS
        self._opening = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._receivers: list[ReplySubscription] = []

    async def address(self) -> str:
        async with self._opening:
            if self._thread is None:
                self._topics.declare_one(REPLIES, _PARTITIONS, _KEPT)
                await self._topics.find(REPLIES)
                extents = await self._browser.extents(REPLIES)
                self._start(extents[self._number].end)
        return f"{REPLIES}/{self._number}/{self._id}"

    async def subscribe(self) -> ReplySubscription:
        subscription = ReplySubscription(await self.address(), self._receivers.remove)
        self._receivers.append(subscription)
        return subscription

    async def close(self) -> None:
        for receiver in list(self._receivers):
            await receiver.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            await asyncio.to_thread(thread.join)

    def _start(self, offset: int) -> None:
        self._stopping = threading.Event()
        settings = self._client.address.consumer_settings(
            f"{self._client.address.client_id}-reader"
        )
        settings |= {"auto.offset.reset": "latest", "error_cb": self._client.failed}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(REPLIES, self._number, offset)])
        arguments = (consumer, self._stopping, asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def _run(
        self, consumer: Consumer, stopping: threading.Event, loop: asyncio.AbstractEventLoop
    ) -> None:
        mine = self._id.encode()
        while not stopping.is_set():
            try:
                message = consumer.poll(_POLL)
            except KafkaException as error:
                _LOG.warning("could not read replies, trying again: %s", error)
                stopping.wait(1)
                continue
            if message is None or message.error() is not None:
                continue
            record = record_of(message)
            if (_FOR, mine) in record.headers:
                try:
                    loop.call_soon_threadsafe(self._arrived, record)
                except RuntimeError:  # the loop is closed: the program is ending
                    break
        consumer.close()

    def _arrived(self, record: Record) -> None:
        found = read(record)
        headers = {name: value for name, value in found.headers.items() if name != _FOR}
        receipt = Receipt(f"{REPLIES}/{self._number}/{self._id}", None)
        reply = Delivery(found.body, headers, receipt, found.problem, found.properties)
        for receiver in self._receivers:
            receiver.put(reply)
