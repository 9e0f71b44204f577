"""What contestants on RabbitMQ share: looking at queues and removing them, by pika."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import contextlib

import pika
from pika.exceptions import ChannelClosedByBroker

QUORUM = {"x-queue-type": "quorum"}


def left(url: str, queue: str) -> int:
    """How many messages are ready. Once everybody has left, all that is not acknowledged is."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return connection.channel().queue_declare(queue, passive=True).method.message_count
    finally:
        connection.close()


def remove(url: str, *queues: str, exchanges: tuple[str, ...] = ()) -> None:
    """Delete queues and exchanges, if they are there."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    for queue in queues:
        connection.channel().queue_delete(queue)
    for exchange in exchanges:
        with contextlib.suppress(ChannelClosedByBroker):
            connection.channel().exchange_delete(exchange)
    connection.close()


def declare(url: str, queue: str, *, quorum: bool) -> None:
    """Make a durable queue."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True, arguments=QUORUM if quorum else {})
    connection.close()
