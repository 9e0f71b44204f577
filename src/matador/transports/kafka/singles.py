"""Sends records again that were refused together: each travels alone.

The client library puts small records into one batch, and the broker compares the batch with the
limit of the topic. If the batch is larger, it refuses all of them, although each would fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from matador.errors import MatadorError, MessageTooLargeError
from matador.transports.kafka.options import Settings
from matador.transports.kafka.wire import Record

_LARGEST_BATCH = 1_000_000  # bytes; what is larger travels alone anyway

Tell = Callable[[int, KafkaError | BaseException | None, KafkaMessage | None], None]


class Singles:
    """A producer whose batches have one record. It is made when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings | {"batch.num.messages": 1}
        self._largest = int(settings.get("batch.size", _LARGEST_BATCH))
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def may_fit(self, record: Record, report: object) -> bool:
        """Whether a record may have been refused for the size of its batch."""
        return isinstance(report, MessageTooLargeError) and record.size <= self._largest

    def send(self, records: Sequence[Record], tell: Tell) -> None:
        """Send them in order, and tell what came of each. Blocks until all is told."""
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._settings)
            for index, record in enumerate(records):
                try:
                    self._producer.produce(
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        lambda error, message, at=index: tell(at, error, message),
                        headers=record.headers,  # pyright: ignore[reportArgumentType] - invariant
                    )
                except (KafkaException, BufferError, TypeError, ValueError) as error:
                    tell(index, error, None)
            self._producer.flush()  # a record that cannot be sent is given up after the timeout


def travelled_together(reports: Sequence[MatadorError | None]) -> bool:
    """Whether several were sent, and one of them or their batch was too large."""
    return len(reports) > 1 and any(isinstance(one, MessageTooLargeError) for one in reports)
