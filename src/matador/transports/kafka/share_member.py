"""One member of a share group, and the thread that talks to Kafka for it.

The client library reads the next messages only when all that it has read before are acknowledged.
So a member takes a few at a time, and a queue has several members: a handler that takes long keeps
those waiting that were read together with it, and no others.

The library cannot renew the lock on a message. When it ends, the broker gives the message to
somebody else, and what we say about it is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from matador.errors import ConfigurationError, LeaseLostError, MatadorError, UnsupportedError
from matador.transports.kafka.client import KafkaClient
from matador.transports.kafka.errors import is_missing, translate
from matador.transports.kafka.share_holds import Acknowledgement, Acknowledging, ShareHold
from matador.transports.kit.errors import lease_lost

_LOG = logging.getLogger(__name__)
_POLL = 0.1  # seconds; also how long closing takes
_MARGIN = 0.1  # of the lock, for the way to the broker
_FAILED_WAIT = 1.0

Outcome = MatadorError | None
_Call = asyncio.Future[list[Outcome]]


class ShareOwner(Acknowledging, Protocol):
    """Who consumes: told in the event loop what has happened."""

    def arrived(self, holds: list[ShareHold]) -> None:
        """Messages were read."""
        ...

    def failed(self, error: MatadorError) -> None:
        """The topic cannot be read."""
        ...

    def ended(self, member: ShareMember) -> None:
        """The group was left."""
        ...


class ShareMember:
    """Public methods belong to the event loop."""

    def __init__(
        self,
        client: KafkaClient,
        queue: str,
        topic: str,
        group: str,
        owner: ShareOwner,
        *,
        most: int,
        lock: float,
    ) -> None:
        self._client = client
        self._queue = queue
        self._topic = topic
        self._owner = owner
        self._lock = lock * (1 - _MARGIN)
        self._timeout = client.address.timeout
        self._loop = asyncio.get_running_loop()
        # Between the thread and the loop: each is written by one of them.
        self._stopping = False
        self._forced = False
        self._paused = False
        self._open = True
        self._woken = threading.Event()
        self._asked: deque[tuple[Sequence[ShareHold], Acknowledgement, _Call]] = deque()
        # For the thread only.
        self._held: set[tuple[int, int]] = set()
        self._since = time.monotonic()
        try:
            self._consumer = confluent_kafka.ShareConsumer(
                client.address.share_settings(group, most) | {"error_cb": client.failed}
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"Kafka: groups=share does not go with a setting in config: {error}"
            ) from error
        self._thread = threading.Thread(target=self._run, name=f"matador-kafka-share-{queue}")
        self._thread.daemon = True

    # -- for the loop ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it can still acknowledge."""
        return self._open

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Read nothing more, or read on."""
        self._paused = paused
        self._woken.set()

    def stop(self, *, forced: bool) -> None:
        """Leave the group: once all is acknowledged, or at once."""
        self._stopping = True
        self._forced = self._forced or forced
        self._woken.set()

    async def acknowledge(self, holds: Sequence[ShareHold], how: Acknowledgement) -> list[Outcome]:
        """For each None once the broker knows it, or why it does not."""
        if not self._open:
            return [lease_lost(self._queue, "this process has left the group") for _ in holds]
        call: _Call = self._loop.create_future()
        self._asked.append((holds, how, call))
        self._woken.set()
        return await asyncio.shield(call)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._consumer.subscribe([self._topic])
            while not self._forced:
                try:
                    self._answer()
                    if self._held or self._paused:
                        if self._stopping and not self._held:
                            break
                        self._woken.wait(_POLL)
                        self._woken.clear()
                    elif self._stopping:
                        break
                    else:
                        self._read()
                except KafkaException as error:
                    self._failed(error)
                    self._woken.wait(_FAILED_WAIT)
        except Exception:  # noqa: BLE001 - a thread has nobody to raise it to
            _LOG.exception("the consumer of %s has failed", self._queue)
        finally:
            self._open = False
            self._refuse_all()
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                _LOG.warning("the consumer of %s did not close: %s", self._queue, error)
            self._tell(self._owner.ended, self)

    def _read(self) -> None:
        """The broker's clock may run since the poll before this one: it was asked for more then."""
        since, self._since = self._since, time.monotonic()
        holds: list[ShareHold] = []
        for message in self._consumer.poll(_POLL):
            if (error := message.error()) is not None:
                self._read_failed(error)
            else:
                holds.append(self._hold(message, since))
        if holds:
            self._held = {(hold.partition, hold.offset) for hold in holds}
            self._tell(self._owner.arrived, holds)

    def _hold(self, message: KafkaMessage, since: float) -> ShareHold:
        return ShareHold(self._queue, self._owner, self, message, since, self._lock)

    def _answer(self) -> None:
        """Say what became of messages: all that was asked for meanwhile in one request.

        What is over is said alone: the broker refuses all of a partition because of one.
        """
        while self._asked:
            batch: list[tuple[Sequence[ShareHold], Acknowledgement, _Call]] = []
            while self._asked and (not batch or batch[0][1] == self._asked[0][1]):
                batch.append(self._asked.popleft())
            refused: set[int] = set()
            for holds, how, _ in batch:
                refused |= {id(hold) for hold in holds if not self._mark(hold, how)}
            errors = self._commit()
            self._since = time.monotonic()
            for holds, _, call in batch:
                outcomes: list[Outcome] = [
                    lease_lost(self._queue, "its lock has ended")
                    if id(hold) in refused
                    else errors.get(hold.partition, errors.get(-1))
                    for hold in holds
                ]
                self._tell(_resolve, call, outcomes)

    def _mark(self, hold: ShareHold, how: Acknowledgement) -> bool:
        place = hold.partition, hold.offset
        if place not in self._held:
            return False
        self._held.discard(place)
        try:
            self._consumer.acknowledge_offset(
                self._topic, *place, confluent_kafka.AcknowledgeType(how)
            )
        except (KafkaException, RuntimeError, ValueError) as error:
            _LOG.info("a message of %s is not ours any more: %s", self._queue, error)
            return False
        return True

    def _commit(self) -> dict[int, Outcome]:
        """For each partition why it failed; -1: for all. It cannot be said a second time."""
        try:
            found = self._consumer.commit_sync(self._timeout)
        except (KafkaException, RuntimeError) as error:
            return {-1: self._lost(error)}
        return {
            place.partition: self._lost(error)
            for place, error in found.items()
            if error is not None
        }

    def _lost(self, error: Exception) -> LeaseLostError:
        made = LeaseLostError(
            f"the acknowledgement of a message of {self._queue!r} has not arrived, so it may be "
            f"delivered again: {error}"
        )
        made.__cause__ = error
        return made

    def _read_failed(self, error: KafkaError) -> None:
        passing = error.retriable() or (error.code() < 0 and not is_missing(error))
        if not passing or error.code() == KafkaError._UNSUPPORTED_FEATURE:
            self._failed(error)

    def _failed(self, error: KafkaException | KafkaError) -> None:
        failed = translate(error, self._client.where, queue=self._queue)
        if isinstance(failed, UnsupportedError):
            failed = ConfigurationError(
                f"{self._client.where} has no share groups, or they are turned off (the feature "
                f"share.version); use groups=consumer: {error}"
            )
        self._tell(self._owner.failed, failed)

    def _refuse_all(self) -> None:
        while self._asked:
            holds, _, call = self._asked.popleft()
            lost: list[Outcome] = [lease_lost(self._queue, "the group was left") for _ in holds]
            self._tell(_resolve, call, lost)

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop is closed: the program ends
            self._forced = True


def _resolve(call: asyncio.Future[Any], found: object) -> None:
    if not call.done():
        call.set_result(found)
